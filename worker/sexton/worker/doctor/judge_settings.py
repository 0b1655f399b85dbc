"""Judging the settings: what is allowed, and yet not what one would want in earnest. Pure."""

from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

from sexton.worker.doctor.findings import Finding, fault, ok, warning
from sexton.worker.settings import Settings

_LOCAL = frozenset({"127.0.0.1", "::1", "localhost"})
_HOUR_S = 3600.0


def judge_settings(settings: Settings, unknown: Iterable[str]) -> Iterator[Finding]:
    """Findings about the settings, and about variables that are no settings."""
    for name in unknown:
        yield warning("settings.unknown", f"{name} is no setting of this version", "correct or remove it")
    yield _cold(settings)
    yield _credentials(settings)
    if settings.orphan_min_age_s < _HOUR_S:
        yield warning(
            "settings.orphan_min_age",
            f"bytes without a record are deleted after {settings.orphan_min_age_s:g} s",
            "set SEXTON_ORPHAN_MIN_AGE_S far above any commit's time and any pause of a worker: a day",
        )
    if not settings.collect:
        yield warning(
            "settings.collect",
            "nothing is collected: what is rewritten and pruned stays",
            "remove SEXTON_COLLECT=false when the backup is done",
        )
    if not settings.page_targets:
        yield warning(
            "settings.pager_urls",
            "no address for pages is set here",
            "set SEXTON_PAGER_URLS where `sexton pager` runs; try it with `sexton pager --test`",
        )


def _cold(settings: Settings) -> Finding:
    scheme = urlsplit(settings.cold_url).scheme
    if scheme == "memory":
        return fault(
            "settings.cold_url",
            "the cold store is in the memory of one process: its end loses every byte",
            "set SEXTON_COLD_URL to a folder that lasts, or to an object store",
        )
    if scheme == "file" and not _is_local(settings):
        return warning(
            "settings.cold_url",
            "the cold store is a folder, and NATS is on another machine",
            "with workers on several machines, use an object store or a folder that all of them share",
        )
    return ok("settings.cold_url", f"a store of kind {scheme}")


def _credentials(settings: Settings) -> Finding:
    if (
        _is_local(settings)
        or any(
            given is not None
            for given in (
                settings.nats_creds_file,
                settings.nats_nkey_file,
                settings.nats_user,
                settings.nats_token,
                settings.nats_tls_cert_file,
            )
        )
        or any(urlsplit(url).username for url in settings.nats_servers)
    ):
        return ok("settings.credentials", "NATS is on this machine, or is told who asks")
    return warning(
        "settings.credentials",
        "NATS is on another machine and is not told who asks: whoever reaches it may do what a worker may",
        "use one of the roles of deploy/nats, and SEXTON_NATS_CREDS_FILE or SEXTON_NATS_USER",
    )


def _is_local(settings: Settings) -> bool:
    return all(
        urlsplit(url if "://" in url else f"nats://{url}").hostname in _LOCAL for url in settings.nats_servers
    )
