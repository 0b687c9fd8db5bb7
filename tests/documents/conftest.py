"""Provide what the documents' walks need: the real adb."""

from tests.devices.conftest import adb as adb
