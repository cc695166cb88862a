"""Owns configuration: from YAML and command line to a checked Site, and on to what a planner needs. Runs nothing.

``load_site`` reads a site file, ``replay_site`` makes the site of recordings named on the command line, ``resolve``
finds model files and fills in what models decide. All raise ``stages.errors.UserError`` with every mistake at once.
"""

from pipeline.config.load import cameras_folder, load_joining, load_site
from pipeline.config.replay import replay_site
from pipeline.config.resolve import BatchRequest, DeviceRequest, Resolved, resolve
from pipeline.config.site import Site

__all__ = [
    "BatchRequest",
    "DeviceRequest",
    "Resolved",
    "Site",
    "cameras_folder",
    "load_joining",
    "load_site",
    "replay_site",
    "resolve",
]
