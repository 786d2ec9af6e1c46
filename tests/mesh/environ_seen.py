"""Imported in workers only: what the environment was when this was imported."""

import os

SEEN = dict(os.environ)
