"""Opens windows over the picture: questions, the file browser, help."""
