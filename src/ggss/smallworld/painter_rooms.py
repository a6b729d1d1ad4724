"""Where a portrait is taken: a wall whose colour stays visible, and what stands in the room of each occupation."""

from ggss.smallworld.brush import Brush, shade
from ggss.smallworld.palette import CREAM, INK, PAINT, WALL
from ggss.smallworld.people import Person

_WOOD, _BRASS, _NIGHT, _BOARD = (150, 100, 62), (226, 186, 92), (40, 52, 96), (48, 88, 76)


def paint_room(brush: Brush, person: Person) -> None:
    """On the empty wall, before the person is painted."""
    wall = WALL[person.traits.wall]
    brush.rect(0, 46, 64, 64, shade(wall, -0.1))
    match person.place:
        case "kitchen":
            brush.rect(0, 9, 17, 10.6, _WOOD)
            brush.rect(47, 9, 64, 10.6, _WOOD)
            brush.line([(6, 10), (6, 16)], INK, 0.8)
            brush.ellipse(6, 19.5, 4.4, 4.4, (70, 72, 84))
            brush.ellipse(6, 19.5, 3.0, 3.0, (104, 108, 122))
            brush.rect(52, 3, 58, 9, PAINT["red"], round=1.4)
            brush.line([(58, 10), (58, 22)], _WOOD, 1.2)
            brush.ellipse(58, 23, 2.4, 3.0, _WOOD)
        case "hospital":
            brush.ellipse(8.5, 10.5, 6.4, 6.4, CREAM)
            brush.rect(7.2, 6, 9.8, 15, PAINT["red"])
            brush.rect(4, 9.2, 13, 11.8, PAINT["red"])
            beat = [(48, 13), (52, 13), (54, 8), (56.5, 17), (58.5, 13), (63, 13)]
            brush.line(beat, (70, 130, 120), 1.1)
        case "court":
            for left in (1.5, 55):
                brush.rect(left - 1, 4, left + 8.5, 7, (236, 232, 224))
                brush.rect(left, 7, left + 7.5, 48, (224, 218, 208))
                for groove in (1.6, 3.7, 5.8):
                    brush.line([(left + groove, 8), (left + groove, 47)], (190, 184, 178), 0.7)
        case "school":
            brush.rect(0, 3, 19, 21, _WOOD)
            brush.rect(0, 4.4, 17.6, 19.6, _BOARD)
            chalk = (236, 244, 238)
            brush.line([(3, 9), (6, 14), (9, 9)], chalk, 0.9)
            brush.ring(13, 11.5, 2.6, 2.6, chalk, 0.8)
            brush.line([(3, 17), (14, 17)], chalk, 0.7)
        case _:
            brush.rect(-2, 2, 20, 34, (236, 232, 226))
            brush.rect(0, 3.6, 18.4, 32.4, _NIGHT)
            for left, top, right in ((0.5, 16, 4.5), (5.5, 9, 9.5), (10.5, 19, 13.5), (14.3, 13, 18.2)):
                brush.rect(left, top, right, 32.4, (84, 100, 156))
                for row in range(int(top) + 2, 31, 4):
                    brush.rect(left + 0.8, row, left + 1.9, row + 1.4, (255, 224, 130))
                    brush.rect(left + 2.5, row + 1, left + 3.5, row + 2.4, (255, 224, 130))
            brush.ellipse(14.5, 8, 2.2, 2.2, (250, 240, 200))


def paint_desk(brush: Brush, person: Person) -> None:
    """In front of the person, at the lower left."""
    if person.place == "court":  # the gavel
        brush.line([(10, 62), (17, 53)], shade(_WOOD, -0.2), 1.8)
        brush.polygon([(3.4, 53.5), (8, 48.4), (14.6, 54.2), (10, 59.4)], _WOOD)
        brush.line([(4.6, 54.4), (9, 49.5)], _BRASS, 1.2)
        brush.line([(9.8, 58.6), (13.8, 54.2)], _BRASS, 1.2)
    elif person.place == "school":  # an open book
        brush.polygon([(1, 52), (9.5, 54.5), (18, 52), (18, 62), (9.5, 64), (1, 62)], PAINT["blue"])
        brush.polygon([(2.2, 51), (9.5, 53.5), (9.5, 62), (2.2, 60)], CREAM)
        brush.polygon([(16.8, 51), (9.5, 53.5), (9.5, 62), (16.8, 60)], (232, 226, 216))
        for row in (55, 57.4):
            brush.line([(4, row - 0.6), (8, row + 0.6)], (150, 150, 164), 0.6)
            brush.line([(11, row + 0.6), (15, row - 0.6)], (150, 150, 164), 0.6)
    elif person.place == "kitchen":  # a steaming pot
        brush.rect(2, 54, 15, 64, (96, 102, 118), round=1.5)
        brush.rect(1, 53, 16, 55.4, (132, 138, 154), round=1)
        brush.curve((6, 51.5), (3.5, 48.5), (6.5, 45.5), (255, 255, 255, 210), 1.1)
        brush.curve((11, 51.5), (8.5, 48.5), (11.5, 45.5), (255, 255, 255, 210), 1.1)
