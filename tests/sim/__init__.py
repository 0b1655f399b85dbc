"""The collection protocol under a simulator: the real code over ports in memory, in every order there is."""
