"""Everything a worker and a pager can be told, in one object: `SEXTON_` variables, with defaults and units.

A value comes from the first of these that has one: an argument, an environment variable, a file of secrets,
the default. `describe` says which it was; `sexton config` shows it.
"""

from sexton.worker.settings.describe import Described, describe
from sexton.worker.settings.model import PREFIX, Settings
from sexton.worker.settings.reading import read_settings, secrets_dir, unknown_variables

__all__ = ["PREFIX", "Described", "Settings", "describe", "read_settings", "secrets_dir", "unknown_variables"]
