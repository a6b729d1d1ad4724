"""The colours that questions ask about, kept well apart, and the tints of everything else."""

PAINT = {
    "red": (214, 52, 52),
    "green": (52, 158, 82),
    "blue": (48, 98, 214),
    "yellow": (246, 204, 62),
    "purple": (140, 66, 176),
    "white": (248, 248, 244),
}
WALL = {
    "pink": (244, 198, 208),
    "blue": (186, 214, 242),
    "green": (198, 228, 190),
    "yellow": (248, 232, 180),
}
HAIR = {
    "black": (50, 44, 58),
    "red": (190, 66, 38),
    "yellow": (240, 200, 92),
    "white": (238, 238, 244),
}
INK = (52, 44, 60)
CREAM = (252, 248, 240)
