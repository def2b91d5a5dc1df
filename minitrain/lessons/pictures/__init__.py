"""The pictures of the lessons, one file for each chapter."""
