"""The settings of a run: as a value, in gin files and on the command line; what may be trusted."""
