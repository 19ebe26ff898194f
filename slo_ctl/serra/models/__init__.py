"""Devices that exist in virtual time only, one for each class of the paper: hard disk, RAID-0, SSD."""
