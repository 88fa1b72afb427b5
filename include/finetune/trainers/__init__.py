"""What to run on a machine to install, convert, train and export, one module for each trainer."""
