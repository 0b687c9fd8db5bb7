"""One session interface to every device: local, tracker."""
