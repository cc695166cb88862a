"""Owns how log lines look, where they go and what must never be in them. Does not own what is logged, nor any logger.

Lines go to stderr, as text for people or as one JSON object a line for machines, times in UTC. A record may name what
it is about with ``extra={"camera": …, "stage": …, "epoch": …, "seq": …}``; ``extra={"data": {…}}`` adds figures that
only the JSON form shows. Passwords are taken out of the finished text, the traceback included, because a filter that
looks at ``record.args`` misses what an exception of some library carries in its own message.
"""

from __future__ import annotations

import json
import logging
import re
import select
import sys
import threading
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import IO, Any, Final, Literal, TextIO
from urllib.parse import quote

LogFormat = Literal["text", "json"]
LEVELS: Final = ("debug", "info", "warning", "error")
SUBJECT: Final = ("camera", "stage", "epoch", "seq")
OURS: Final = ("campipe", "pipeline", "stages")  # other packages' loggers speak from warning on, whatever the level
HIDDEN: Final = "***"
STUCK_WAIT_MS: Final = 200  # how long a full stderr may hold up the caller, once, before lines are dropped and counted

_USERINFO = re.compile(r"(?<=://)[^\s/\"'<>]*@")  # greedy: a password may hold an @ that nobody escaped
_PARAMETER = re.compile(r"(?i)(?<![a-z0-9])(password|passwd|pwd|pass|token|secret)=[^&\s\"'<>]+")

_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # controls, direction marks, surrogates, other line ends

_lock = threading.Lock()
_secrets: set[str] = set()
_secret_pattern: re.Pattern[str] | None = None
_settings: tuple[LogFormat, str] | None = None


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How this process logs, to be handed to its workers. The repr shows no secret."""

    log_format: LogFormat
    level: str
    secrets: frozenset[str] = field(repr=False)

    def apply(self, subject: Mapping[str, str | int] | None = None) -> None:
        """Log alike in this process, for good; records that name no ``subject`` of their own have this one."""
        for secret in self.secrets:
            register_secret(secret)
        configure(self.log_format, self.level, subject=subject)


def settings() -> LogSettings | None:
    """What ``configure`` was told, None where it was not called: then logging is the embedding program's business."""
    return LogSettings(*_settings, frozenset(_secrets)) if _settings else None


def register_secret(value: str) -> None:
    """Never show ``value`` in a log line again, as it is, in a URL's escapes, or as ``repr`` writes it."""
    global _secret_pattern  # noqa: PLW0603 - one registry per process, as there is one stderr
    if not value:
        return
    with _lock:
        # a password that is no UTF-8 comes from the environment with surrogates in it
        encoded = value.encode(errors="surrogateescape") if _is_from_bytes(value) else value.encode(errors="replace")
        _secrets.update({value, quote(encoded, safe=""), quote(encoded), repr(value)[1:-1]})
        # The longest first, so that no rest of a long secret stays when a short one is its beginning. Secrets of one to
        # three characters count as whole words only: hiding each "1" would leave no line readable.
        ordered = sorted(_secrets, key=lambda secret: (-len(secret), secret))
        parts = [re.escape(s) if len(s) > 3 else rf"(?<!\w){re.escape(s)}(?!\w)" for s in ordered]
        _secret_pattern = re.compile("|".join(parts))


def _is_from_bytes(value: str) -> bool:
    """Whether every surrogate in it stands for a byte, as Python reads what is not UTF-8."""
    try:
        value.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def redact(text: str) -> str:
    """``text`` without registered secrets, without user and password in URLs, without ``password=…`` parameters."""
    pattern = _secret_pattern
    if pattern is not None:
        text = pattern.sub(HIDDEN, text)
    text = _USERINFO.sub(f"{HIDDEN}@", text)
    return _PARAMETER.sub(rf"\1={HIDDEN}", text)


def printable(text: str) -> str:
    """``text`` on one line and without terminal control: what is not visible is shown as its escape (``\\x1b``)."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if unicodedata.category(c) in _INVISIBLE else c for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _utc(created_s: float) -> str:
    moment = datetime.fromtimestamp(created_s, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info and record.exc_info[0] is not None:
        parts.append(formatter.formatException(record.exc_info))
    elif record.exc_text:
        parts.append(record.exc_text)
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return redact("\n".join(parts))


def _with_subject(subject: dict[str, str | int], record: logging.LogRecord) -> bool:
    if not any(hasattr(record, name) for name in SUBJECT):
        vars(record).update(subject)
    return True


class TextFormatter(logging.Formatter):
    """``2026-11-30T07:45:12.123Z INFO    gate-1 decode 0/17: message``; a traceback follows, indented.

    Without the subject where the message names the camera, or else the stage, itself.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line, then the traceback if there is one."""
        message = record.getMessage()
        line = f"{_utc(record.created)} {record.levelname:<7} {_subject(record, message)}{printable(redact(message))}"
        trace = _trace(self, record)
        if trace:
            line += "".join(f"\n    {printable(part)}" for part in trace.splitlines())
        return line


def _subject(record: logging.LogRecord, message: str) -> str:
    camera, stage, epoch, seq = (getattr(record, name, None) for name in SUBJECT)
    named = stage if camera is None else camera
    if named is not None and _mentions(message, str(named)):
        return ""
    parts = [str(value) for value in (camera, stage) if value is not None]
    if seq is not None:
        parts.append(f"{epoch if epoch is not None else '-'}/{seq}")
    elif epoch is not None:
        parts.append(f"epoch {epoch}")
    return f"{printable(redact(' '.join(parts)))}: " if parts else ""


def _mentions(message: str, name: str) -> bool:
    """Whether ``name`` is in there as a whole word. Without a pattern: ``re`` keeps each that it was ever given."""
    at = message.find(name)
    while at >= 0:
        around = message[max(at - 1, 0) : at] + message[at + len(name) : at + len(name) + 1]
        if not any(character.isalnum() or character in "_-" for character in around):
            return True
        at = message.find(name, at + 1)
    return False


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time level logger message``, the subject's fields, ``data``, ``traceback``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        fields: dict[str, Any] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        for name in SUBJECT:
            value = getattr(record, name, None)
            if value is not None:
                fields[name] = value if isinstance(value, int) else redact(str(value))
        data = getattr(record, "data", None)
        if data is not None:
            fields["data"] = _redact_all(data)
        trace = _trace(self, record)
        if trace:
            fields["traceback"] = trace
        return json.dumps(fields, ensure_ascii=False, default=lambda value: redact(str(value)))


def _redact_all(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(str(key)): _redact_all(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_all(item) for item in value]
    return value


class StderrHandler(logging.Handler):
    """Writes to stderr as it is at that moment (a live table may stand in for it), and never waits for long.

    A pipe that nobody reads, or a terminal stopped by Ctrl-S, would otherwise stop the engine with it: after one wait
    of ``STUCK_WAIT_MS`` lines are dropped until stderr takes some again, and their number is then told.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream
        self._stuck = False
        self.lines_lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; an error of writing is no reason to fail."""
        stream = self._stream if self._stream is not None else sys.stderr
        if stream is None:
            return
        try:
            if not takes_output(stream, 0 if self._stuck else STUCK_WAIT_MS):
                self._stuck = True
                self.lines_lost += 1
                return
            if self.lines_lost:
                lost, self.lines_lost, self._stuck = self.lines_lost, 0, False
                stream.write(self.format(_lost_record(record, lost)) + "\n")
            self._stuck = False
            stream.write(self.format(record) + "\n")
            stream.flush()
        except (OSError, ValueError):  # closed, or its reader is gone: there is nowhere left to say so
            return
        except Exception:  # noqa: BLE001 - a record that can't be formatted must not stop what it tells of
            self.handleError(record)


def _lost_record(record: logging.LogRecord, lost: int) -> logging.LogRecord:
    text = f"{lost} log lines were dropped: stderr was not being read"
    return logging.LogRecord(__name__, logging.WARNING, record.pathname, record.lineno, text, None, None)


def takes_output(stream: IO[str], wait_ms: int = 0) -> bool:
    """Whether a line can be written to ``stream`` now, or within ``wait_ms``, without blocking."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):  # held in memory, or closed
        return True
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    return bool(poller.poll(wait_ms))


def configure(
    log_format: LogFormat = "text",
    level: str = "info",
    *,
    stream: TextIO | None = None,
    subject: Mapping[str, str | int] | None = None,
) -> Callable[[], None]:
    """Set logging up for this process; ``stream`` instead of stderr. What is returned puts all back as it was.

    ``subject``: what records are about that name none of ``SUBJECT`` themselves: those of a worker, FFmpeg's included.
    ``level`` is one of ``LEVELS`` and holds for campipe's own loggers.
    """
    global _settings
    earlier, _settings = _settings, (log_format, level)
    handler = StderrHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    if subject:
        handler.addFilter(partial(_with_subject, dict(subject)))
    root = logging.getLogger()
    ours = [logging.getLogger(name) for name in OURS]
    before = [(logger, logger.level) for logger in (root, *ours)]
    chosen = getattr(logging, level.upper())
    root.addHandler(handler)
    root.setLevel(max(chosen, logging.WARNING))
    for logger in ours:
        logger.setLevel(chosen)
    logging.captureWarnings(True)

    def undo() -> None:
        global _settings  # noqa: PLW0603 - see above
        _settings = earlier
        root.removeHandler(handler)
        for logger, old in before:
            logger.setLevel(old)
        logging.captureWarnings(False)

    return undo
