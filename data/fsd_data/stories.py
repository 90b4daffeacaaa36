"""The stories of the word problems: templates of the sentences of questions and of the steps of solutions.

`problems.py` draws the numbers and assembles the sentences. In solution steps the alternatives in brackets are ordered
as `wording.py` says; `{sum}` is the calculation, such as "3*4=12".
"""

from __future__ import annotations

from typing import NamedTuple


class Event(NamedTuple):
    """An event that changes the running amount."""

    op: str  # "+", "-", "*", "/", or "+*": a product that is added (two steps)
    tell: str  # sentence of the question; {n} is the number, {k} the second factor of "+*"
    step: str  # step of the solution


class Story(NamedTuple):
    name: str
    items: tuple[str, ...]
    start: Event  # "*" or "+" applied to {a} and {b}
    events: tuple[Event, ...]
    ask: str


OPENERS = "[First|To begin|At first], "
LATER = "[Then|Next|After that], "
CLOSING = "[So the answer is|That makes|The result is] {r}.\n#### {r}"
PART = "[the new part is|that part gives|we add] {sum} {items}"

STORIES = (
    Story(
        "orchard",
        ("apples", "pears", "plums", "cherries"),
        Event(
            "*",
            "{who} [picks|gathers] {b} {items} from each of {a} trees.",
            "{who} [picks|gathers] {sum} {items} [in all|altogether|from the trees]",
        ),
        (
            Event(
                "-",
                "{who} [gives {n} of them to a neighbor|lets a neighbor have {n}].",
                "[there are|{who} keeps] {sum} {items} [left|after the gift]",
            ),
            Event(
                "+",
                "{who} [finds {n} more on the ground|picks up {n} more from the grass].",
                "[with those|counting the extra ones] {who} has {sum} {items}",
            ),
            Event(
                "/",
                "The {items} are [shared equally among|split evenly between] {n} baskets, and {who} takes one basket.",
                "[one basket holds|each basket gets] {sum} {items}",
            ),
            Event(
                "*",
                "The next day {who} has {n} times as many.",
                "[the next day|a day later] {who} has {sum} {items}",
            ),
        ),
        "How many {items} does {who} [have now|end up with]?",
    ),
    Story(
        "market",
        ("books", "pens", "lamps", "mugs"),
        Event(
            "*",
            "{who} [buys|orders] {a} {items} that cost {b} dollars each.",
            "the {items} [cost|come to] {sum} dollars [in all|altogether|together]",
        ),
        (
            Event(
                "+",
                "{who} also [pays {n} dollars for delivery|spends {n} dollars on a bag].",
                "[the bill rises to|with that the price is] {sum} dollars",
            ),
            Event(
                "-",
                "A coupon [takes {n} dollars off|cuts the bill by {n} dollars].",
                "[the coupon leaves|after the coupon it is] {sum} dollars",
            ),
            Event(
                "+*",
                "{who} [adds|also takes] {n} notebooks at {k} dollars each.",
                "[the bill rises to|with that the price is] {sum} dollars",
            ),
            Event(
                "/",
                "The bill is [shared equally by|split between] {n} people.",
                "[each person pays|one share is] {sum} dollars",
            ),
        ),
        "How many dollars [is that for each payer|must each payer pay]?",
    ),
    Story(
        "savings",
        ("dollars",),
        Event(
            "*",
            "{who} [saves|puts aside] {b} dollars a week for {a} weeks.",
            "{who} [saves|puts aside] {sum} dollars [in all|altogether|over the weeks]",
        ),
        (
            Event(
                "+",
                "Then a grandmother [gives {who} {n} dollars|sends {who} {n} dollars].",
                "[with the gift|adding the gift] {who} has {sum} dollars",
            ),
            Event(
                "-",
                "{who} [spends {n} dollars on a game|buys a shirt for {n} dollars].",
                "[this leaves|{who} keeps] {sum} dollars",
            ),
            Event(
                "*",
                "A parent makes the amount {n} times as large.",
                "[the money grows to|now there are] {sum} dollars",
            ),
            Event(
                "+*",
                "{who} also [earns {k} dollars an hour for {n} hours|works {n} hours for {k} dollars each].",
                "[with the wage|adding the pay] {who} has {sum} dollars",
            ),
        ),
        "How many dollars does {who} [have now|have in the end]?",
    ),
    Story(
        "farm",
        ("eggs",),
        Event(
            "*",
            "{who} has {a} hens, and each [lays|gives] {b} eggs a week.",
            "the hens [lay|give] {sum} eggs [in all|altogether|each week]",
        ),
        (
            Event(
                "-",
                "{who} [eats {n} of the eggs|uses {n} of the eggs for breakfast].",
                "[there are|{who} keeps] {sum} eggs [left|after that]",
            ),
            Event(
                "/",
                "The eggs are [packed into|put equally in] {n} boxes, and we look at one box.",
                "[one box holds|each box gets] {sum} eggs",
            ),
            Event(
                "*",
                "This [goes on|continues] for {n} weeks.",
                "[over the weeks|in this time] there are {sum} eggs",
            ),
            Event(
                "+",
                "A friend [brings {n} more eggs|adds {n} eggs].",
                "[with those|counting the new ones] there are {sum} eggs",
            ),
        ),
        "How many eggs are there [in the end|now]?",
    ),
    Story(
        "reading",
        ("pages",),
        Event(
            "*",
            "{who} reads {b} pages [a day|every day] for {a} days.",
            "{who} [reads|finishes] {sum} pages [in all|altogether|in those days]",
        ),
        (
            Event(
                "+",
                "On Sunday {who} [reads {n} more pages|finishes another {n} pages].",
                "[by Sunday|with Sunday] it is {sum} pages",
            ),
            Event(
                "-",
                "But {n} of the pages [were only pictures and do not count|had no text and are left out].",
                "[without pictures|leaving those out] it is {sum} pages",
            ),
            Event(
                "*",
                "A sister reads {n} times as much, and we count her pages.",
                "[the sister reads|her count is] {sum} pages",
            ),
            Event(
                "+*",
                "Later {who} reads {n} stories of {k} pages each.",
                "[with the stories|adding them] it is {sum} pages",
            ),
        ),
        "How many pages [is that|are counted]?",
    ),
    Story(
        "travel",
        ("miles",),
        Event(
            "*",
            "{who} [drives|rides] for {a} hours at {b} miles an hour.",
            "{who} [covers|travels] {sum} miles [in all|altogether|in that time]",
        ),
        (
            Event(
                "+",
                "After lunch {who} [goes {n} miles farther|does another {n} miles].",
                "[the trip grows to|by then it is] {sum} miles",
            ),
            Event(
                "-",
                "A shortcut [saves {n} miles|makes it {n} miles shorter].",
                "[the shortcut leaves|that makes] {sum} miles",
            ),
            Event(
                "+*",
                "Then come {n} hours at {k} miles an hour.",
                "[the trip grows to|by then it is] {sum} miles",
            ),
            Event("*", "{who} makes this trip {n} times.", "[all the trips are|together they are] {sum} miles"),
        ),
        "How many miles is that [in total|altogether]?",
    ),
    Story(
        "bakery",
        ("cookies", "muffins", "rolls", "pies"),
        Event(
            "*",
            "{who} bakes {a} trays of {b} {items} [each|a tray].",
            "{who} [bakes|makes] {sum} {items} [in all|altogether|at once]",
        ),
        (
            Event("-", "Sadly {n} of them [burn|get burnt].", "[there are|{who} keeps] {sum} good {items}"),
            Event(
                "-",
                "{who} [sells {n} of them|has {n} bought by a customer].",
                "[there are|{who} keeps] {sum} {items} [left|on the shelf]",
            ),
            Event(
                "+",
                "A helper [brings {n} more|makes another {n}].",
                "[with those|counting the new ones] there are {sum} {items}",
            ),
            Event(
                "/",
                "They are [put equally on|shared evenly between] {n} plates, and {who} takes one plate.",
                "[one plate holds|each plate gets] {sum} {items}",
            ),
        ),
        "How many {items} does {who} [have now|end up with]?",
    ),
    Story(
        "classroom",
        ("students",),
        Event(
            "*",
            "A school trip has {a} groups of {b} students [each|a group].",
            "the groups [have|count] {sum} students [in all|altogether|together]",
        ),
        (
            Event(
                "-",
                "On the day {n} students [stay at home|are ill].",
                "[this leaves|there remain] {sum} students",
            ),
            Event(
                "+",
                "Another class with {n} students [comes along|joins them].",
                "[the trip grows to|with them there are] {sum} students",
            ),
            Event(
                "/",
                "The students are [spread evenly over|split equally between] {n} buses, and we look at one bus.",
                "[one bus holds|each bus takes] {sum} students",
            ),
            Event(
                "+*",
                "Then {n} more cars with {k} students each [arrive|join].",
                "[the trip grows to|with them there are] {sum} students",
            ),
        ),
        "How many students [are there|is that]?",
    ),
    Story(
        "ages",
        ("years",),
        Event(
            "+",
            "{who} is {a} years old, and a brother is {b} years [older|more].",
            "the brother [is|must be] {sum} years old [today|now|at present]",
        ),
        (
            Event("*", "Their aunt is {n} times as old as that.", "[the aunt is|her age is] {sum} years"),
            Event(
                "+",
                "We want the age {n} years [later|from then].",
                "[the later age is|by then it is] {sum} years",
            ),
            Event(
                "-",
                "A cousin is {n} years [younger|less] than that.",
                "[the cousin is|this makes] {sum} years",
            ),
        ),
        "What age [is that|do we get]?",
    ),
    Story(
        "garden",
        ("roses", "tulips", "beans", "bushes"),
        Event(
            "*",
            "{who} plants {a} rows with {b} {items} [each|a row].",
            "{who} [plants|sets] {sum} {items} [in all|altogether|in the rows]",
        ),
        (
            Event(
                "-",
                "A storm [ruins {n} of them|takes {n} of them].",
                "[the storm leaves|there remain] {sum} {items}",
            ),
            Event(
                "+",
                "{who} [adds {n} more by the fence|plants {n} more by the wall].",
                "[with those|counting the new ones] there are {sum} {items}",
            ),
            Event(
                "+*",
                "{who} adds {n} beds of {k} {items} each.",
                "[with those|counting the new ones] there are {sum} {items}",
            ),
            Event(
                "/",
                "They stand equally in {n} [beds|plots], and we look at one of them.",
                "[one bed holds|each plot has] {sum} {items}",
            ),
        ),
        "How many {items} [are there|is that] in the end?",
    ),
    Story(
        "factory",
        ("parts", "wheels", "toys", "bolts"),
        Event(
            "*",
            "{a} machines each make {b} {items} [an hour|every hour].",
            "the machines [make|produce] {sum} {items} [in all|altogether|an hour]",
        ),
        (
            Event("*", "They [run|work] for {n} hours.", "[over the hours|in that time] it is {sum} {items}"),
            Event(
                "-",
                "{who} [throws away {n} that are broken|finds {n} broken ones and drops them].",
                "[this leaves|there remain] {sum} {items}",
            ),
            Event(
                "/",
                "They are [packed equally in|split evenly over] {n} crates, and we look at one crate.",
                "[one crate holds|each crate gets] {sum} {items}",
            ),
            Event(
                "+",
                "There were {n} [in stock|on the shelf] already.",
                "[with the stock|adding the old ones] it is {sum} {items}",
            ),
        ),
        "How many {items} [are there|is that]?",
    ),
    Story(
        "tickets",
        ("dollars",),
        Event(
            "*",
            "{who} sells {a} tickets for {b} dollars [each|a ticket].",
            "the tickets [bring|earn] {sum} dollars [in all|altogether|together]",
        ),
        (
            Event(
                "+*",
                "There are also {n} child tickets at {k} dollars [each|a ticket].",
                "[the income grows to|with that there are] {sum} dollars",
            ),
            Event(
                "-",
                "The hall [costs {n} dollars|takes {n} dollars as rent].",
                "[the rent leaves|there remain] {sum} dollars",
            ),
            Event(
                "/",
                "The money is [shared equally by|split between] {n} players, and {who} is one of them.",
                "[one player gets|each share is] {sum} dollars",
            ),
            Event(
                "+",
                "A fan [gives {n} dollars more|leaves a gift of {n} dollars].",
                "[with the gift|adding it] there are {sum} dollars",
            ),
        ),
        "How many dollars [is that|are there] in the end?",
    ),
)
