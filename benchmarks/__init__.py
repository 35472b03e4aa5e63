"""Measurements that research asked for: README.md."""
