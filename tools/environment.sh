# shellcheck shell=sh disable=SC2154,SC2034
# Sourced by tools/demo, tools/test and .ci/run, which set $tools to this folder: finds a Python, has the program in
# environment/ prepare the virtual environment with it, and leaves $checkout and $venv. Knows nothing of what is installed.
#
# CAMPIPE_PYTHON   the Python to use (3.11 or newer); else the one .venv was made with, python3.13, 3.12, 3.11, python3
# CAMPIPE_VENV     the virtual environment's folder, for a checkout that cannot be written to; else .venv in the checkout

checkout=$(dirname -- "$tools")
venv=${CAMPIPE_VENV:-$checkout/.venv}
case $venv in /*) ;; *) venv=$PWD/$venv ;; esac

# What others set for their own Python must not leak into this one: packages found there would count as installed here.
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP

# ONNX Runtime's wheels report to their maker unless this is set before they are imported; campipe sets it for itself.
export ORT_DISABLE_TELEMETRY="${ORT_DISABLE_TELEMETRY:-1}"

say() {
    printf 'campipe: %s\n' "$1" >&2
}

refuse() {
    printf 'campipe: %s\n' "$@" >&2
    exit 2
}

# One line about a Python: "old VERSION", "incomplete MODULE", or "whole PATH" and, without ensurepip, "bare PATH".
# The path is that of the Python below, where the one asked is a virtual environment's. Any Python since 2.6 can run it.
describe_python() {
    "$1" -c '
import sys
if sys.version_info < (3, 11):
    print("old %d.%d" % sys.version_info[:2])
else:
    try:
        import ctypes, ssl, venv, zlib
    except ImportError as error:
        print("incomplete %s" % error.name)
    else:
        import importlib.util
        path = getattr(sys, "_base_executable", "") or sys.executable
        print("%s %s" % ("whole" if importlib.util.find_spec("ensurepip") else "bare", path))
' </dev/null 2>/dev/null || true
}

# Sets $python, or leaves it empty and says in $seen what was looked at. A Python that can make a whole virtual
# environment is preferred to one without ensurepip, whatever their versions.
find_python() {
    python='' bare='' seen=''
    if [ -n "${CAMPIPE_PYTHON-}" ]; then
        set -- "$CAMPIPE_PYTHON"
    else
        set -- "$venv/bin/python" python3.13 python3.12 python3.11 python3
    fi
    for candidate in "$@"; do
        if ! command -v -- "$candidate" >/dev/null 2>&1; then continue; fi
        line=$(describe_python "$candidate")
        rest=${line#* }
        case $line in
            "whole "*) python=$rest; return ;;
            "bare "*) bare=${bare:-$rest} ;;
            "old "*) seen="$seen, $candidate is Python $rest" ;;
            "incomplete "*) seen="$seen, $candidate lacks the module $rest" ;;
        esac
        # What the environment was made with stays, though another Python could make it more easily.
        if [ -n "$bare" ] && [ "$candidate" = "$venv/bin/python" ]; then break; fi
    done
    python=$bare
    seen=${seen#, }
}

# Only for a machine without any usable Python, where this is root's and Debian's: the newest that the release has.
install_python() {
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then return 0; fi
    say "no Python 3.11 or newer is here; asking apt-get for one"
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    PATH=$PATH:/usr/sbin:/sbin apt-get -q update </dev/null >"$log" 2>&1 || true
    for version in 3.13 3.12 3.11; do
        if ! apt-cache policy "python$version" 2>/dev/null | grep -q 'Candidate: [0-9]'; then continue; fi
        say "apt-get install python$version python$version-venv"
        PATH=$PATH:/usr/sbin:/sbin apt-get -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 \
            install "python$version" "python$version-venv" </dev/null >>"$log" 2>&1 || tail -n 8 -- "$log" >&2
        break
    done
    rm -f -- "$log"
    find_python
}

# prepare_environment EXTRAS: when it returns, $venv holds campipe with these extras (comma-separated, or empty).
prepare_environment() {
    if [ -n "${CAMPIPE_PYTHON-}" ] && ! command -v -- "$CAMPIPE_PYTHON" >/dev/null 2>&1; then
        refuse "CAMPIPE_PYTHON=$CAMPIPE_PYTHON: there is no such program; name a Python 3.11 or newer, or unset it"
    fi
    find_python
    if [ -z "$python" ] && [ -n "${CAMPIPE_PYTHON-}" ]; then
        refuse "CAMPIPE_PYTHON=$CAMPIPE_PYTHON cannot be used (${seen:-it is no Python}); name a Python 3.11 or newer"
    fi
    if [ -z "$python" ]; then install_python; fi
    if [ -z "$python" ]; then
        refuse "Python 3.11 or newer is needed (${seen:-no python3 is in PATH})." \
            "On Debian 12, Ubuntu 24.04 or later:  sudo apt-get install python3 python3-venv" \
            "Or name one that lies elsewhere:  CAMPIPE_PYTHON=/path/to/python3.12"
    fi
    "$python" -I "$tools/environment" --checkout "$checkout" --venv "$venv" --extras "$1" \
        ${CAMPIPE_PYTHON:+--insist} || exit $?
}
