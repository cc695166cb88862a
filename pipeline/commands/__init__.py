"""The commands of ``campipe``, one module each: ``add_parser`` describes, ``run`` imports what is heavy and does it."""
