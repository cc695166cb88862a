"""The Ascend backend: the one place that touches the vendor's module ``acl``."""
