"""The drives of table I."""

LABELS = ("emulated SSD with log blocks, after table I",)
LOGICAL_MIB = {"sandisk": 4, "samsung": 8, "mtron": 2}
CAPACITY_GIB = {"sandisk": 32, "samsung": 64, "mtron": 64}
