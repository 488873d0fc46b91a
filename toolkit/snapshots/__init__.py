"""The seam: run directories, their snapshots, exposure and logs, written by one half and read by the other."""
