"""DVC: the repository, its lock file, plots and chains of stages."""
