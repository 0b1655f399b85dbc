"""What the tests of the pager share: a receiver that misbehaves on demand, and records to page about."""
