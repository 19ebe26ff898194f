"""What people see: tables, progress, plots and reports. Reads results, changes nothing."""
