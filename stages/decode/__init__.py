"""Sources of frames: files now, cameras later."""
