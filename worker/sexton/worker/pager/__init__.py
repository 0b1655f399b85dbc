"""The pager: tells people of hard failures, dead letters and stuck collections, and of their end.

- `sexton.worker.pager.app` is the program, a composition root;
- `sexton.worker.pager.incidents` keeps what is known of each failure, in a stream;
- `sexton.worker.pager.pages` sends what is due;
- `sexton.worker.pager.targets` is where pages go, through Apprise;
- what is to be done, and when, is `sexton.core.incidents`.
"""
