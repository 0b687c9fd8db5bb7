"""What is shipped to an app: the libraries of its cells in one signed archive, and what checks such an archive."""
