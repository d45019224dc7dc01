"""What every package uses: declared settings, gin files, run directories, user errors."""
