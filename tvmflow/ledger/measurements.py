def ensure_recorded(workspace, cell): pass
