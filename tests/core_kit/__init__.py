"""What the tests of the core share: commands in a line, a naive model of the rules, an audit of a tree."""
