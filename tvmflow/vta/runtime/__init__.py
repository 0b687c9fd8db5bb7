"""Run VTA programs: devices, driver, auditing."""
