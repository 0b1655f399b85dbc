"""What the tests of the wire share: examples, and messages made from the published schemas."""
