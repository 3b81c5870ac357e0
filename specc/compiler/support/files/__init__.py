"""Files and folders: those that a user names, those that are damaged, and those that specc keeps or writes."""
