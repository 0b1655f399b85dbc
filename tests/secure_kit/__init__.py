"""What the tests of permissions share: keys, and servers with the configuration that is shipped."""
