"""What is said in a CustomerSim dialogue: the sentences of its agenda, as data.

``{NAME}``, ``{ADDRESS}``, ``{PHONE}``, ``{ORDER}`` and ``{TRACKING}`` are secrets and become gold spans;
``{item}`` and ``{day}`` are public words. The sentences contain no digit and no person's name, and a
secret is only ever said whole (never a first name or "the last four digits" alone): what is outside the
gold spans therefore tells nothing about what is inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Phrasings = tuple[str, ...]
Pairs = tuple[tuple[str, str], ...]  # one speaker, then the other


@dataclass(frozen=True)
class Verification:
    """How one secret is asked for, told, volunteered before the question, and read back."""

    ask: Phrasings
    tell: Phrasings
    volunteer: Phrasings
    read_back: Phrasings


@dataclass(frozen=True)
class Check:
    """A question about the problem itself; its answers hold no secret."""

    ask: str
    answers: Phrasings


@dataclass(frozen=True)
class Goal:
    """Why the customer writes. Every resolution names the tracking number."""

    name: str
    openings: Phrasings
    checks: tuple[Check, ...]
    resolutions: Phrasings
    verify: Mapping[str, Verification] = field(default_factory=dict)  # replaces VERIFY for a label


ITEMS: Phrasings = (
    "desk lamp", "rain jacket", "coffee grinder", "pair of boots", "phone case", "bookshelf", "yoga mat",
    "set of pans", "garden hose", "wall clock", "backpack", "keyboard", "winter blanket", "bike helmet",
    "board game", "kettle", "swivel chair", "pair of headphones", "suitcase", "toaster", "tent",
    "picture frame", "water filter", "drill", "guitar stand", "dog bed", "mirror", "fitness watch",
)  # fmt: skip

DAYS: Phrasings = (
    "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "yesterday", "last week",
    "two weeks ago", "the day before yesterday",
)  # fmt: skip

GREETINGS: Phrasings = (
    "Hello, you have reached customer service. How can I help?",
    "Good morning, thanks for getting in touch. What can I do for you?",
    "Hi there, this is the support desk. What is going on?",
    "Welcome to the help line. Please tell me what happened.",
    "Good afternoon, how may I assist you today?",
    "Thank you for waiting. What brings you here?",
)

PLEASANTRIES: Phrasings = (
    "Hi, hope your day is going well.",
    "Hello.",
    "Good morning.",
    "Hey, finally somebody I can talk to.",
    "Hi, thanks for picking this up so quickly.",
    "Hello, I hope I am in the right place.",
)

SYMPATHY: Phrasings = (
    "I am sorry to hear that.",
    "Thanks for letting us know.",
    "That should not happen, let me have a look.",
    "I understand, we will sort this out.",
    "Of course, I can help with that.",
    "Right, let us see what we can do.",
)

NEXT_QUESTION: Phrasings = ("Thank you.", "Great, thanks.", "Got it.", "Perfect.", "Noted.", "Thanks a lot.")

UNCLEAR: Phrasings = (
    "Sorry, that did not come through properly. Could you send it once more?",
    "My screen froze for a second, can you repeat that?",
    "I could not find a match. Would you check the spelling and try again?",
)

RIGHT: Phrasings = ("Yes, exactly.", "That is right.", "Correct.", "Yep, that's the one.", "It is.")

WAITING: Pairs = (
    ("One moment while I pull up the details.", "Sure, take your time."),
    ("The system is a little slow today, please bear with me.", "No problem, mine is never any faster."),
    ("I am opening your file now.", "Okay, I am making a cup of tea meanwhile."),
    ("Give me a minute to check with the warehouse.", "Alright, I will wait."),
    ("Let me ask a colleague about this.", "Fine, as long as we can settle it today."),
)

REACTIONS: Phrasings = (
    "That works for me, thank you.",
    "Oh good, that is a relief.",
    "Okay, I can live with that.",
    "Perfect, that was easier than I expected.",
    "Alright, I will keep an eye on it.",
)

REPEAT_TRACKING: Pairs = (
    ("Could you give me the tracking number again?", "Certainly: {TRACKING}."),
    ("Wait, let me find a pen. What was the number?", "No hurry. The tracking number is {TRACKING}."),
    ("So I should look for {TRACKING}?", "Yes, exactly that one."),
)

SUMMARIES: Phrasings = (
    "To sum up: order {ORDER} under the name {NAME}, delivery to {ADDRESS}.",
    "I have noted everything on order {ORDER}, and we will call {PHONE} if anything changes.",
    "You will get a confirmation for {ORDER} shortly, and the driver has {PHONE} as the contact.",
    "For your records, this case belongs to {NAME} and order {ORDER}.",
)

ANYTHING_ELSE: Phrasings = (
    "Is there anything else I can do?",
    "Do you need help with something else?",
    "Was that everything for today?",
)

FAREWELLS: Pairs = (
    ("No, that was all. Bye.", "Goodbye, and thank you for your patience."),
    ("Nothing else, thanks for your help.", "You are welcome. Have a pleasant day."),
    ("That is all, have a good one.", "You too, take care."),
    ("No thanks, you have been very kind.", "My pleasure. Goodbye."),
    ("All set, thank you.", "Wonderful. Until next time."),
)

VERIFY: Mapping[str, Verification] = {
    "NAME": Verification(
        ask=(
            "Could I have your full name, please?",
            "Who am I speaking with?",
            "Under which name is the account registered?",
            "May I ask for your first and last name?",
        ),
        tell=(
            "My name is {NAME}.",
            "{NAME}.",
            "It should be under {NAME}.",
            "Sure, I am {NAME}.",
            "{NAME} is the name on the account.",
        ),
        volunteer=("By the way, my name is {NAME}.", "This is {NAME} speaking."),
        read_back=("So the name is {NAME}, correct?", "I found an account for {NAME}, is that you?"),
    ),
    "ADDRESS": Verification(
        ask=(
            "What is the delivery address?",
            "Could you confirm the address we have on file?",
            "Where was it supposed to be delivered?",
            "Please give me your street, city and zip code.",
        ),
        tell=(
            "I live at {ADDRESS}.",
            "{ADDRESS}.",
            "The address is {ADDRESS}.",
            "It goes to {ADDRESS}, same as always.",
            "That would be {ADDRESS}.",
        ),
        volunteer=("The address should be {ADDRESS}.", "You probably also need the address: {ADDRESS}."),
        read_back=("I see {ADDRESS} here, is that still right?", "Just to be sure, you said {ADDRESS}?"),
    ),
    "PHONE": Verification(
        ask=(
            "Which phone number is linked to your account?",
            "Can I get a phone number to verify you?",
            "What is the best number to reach you?",
            "Please confirm your telephone number.",
        ),
        tell=(
            "You can reach me at {PHONE}.",
            "{PHONE}.",
            "My number is {PHONE}.",
            "It's {PHONE}, that is my mobile.",
            "Sure, {PHONE}.",
        ),
        volunteer=("My phone number is {PHONE}, in case you need it.", "And you can call me on {PHONE}."),
        read_back=("I have {PHONE} as your number, right?", "Was that {PHONE}?"),
    ),
    "ORDER": Verification(
        ask=(
            "What is your order number?",
            "Do you have the number of the order at hand?",
            "Which order is this about?",
            "Could you read me the order number from the confirmation mail?",
        ),
        tell=(
            "The order number is {ORDER}.",
            "{ORDER}.",
            "Let me look. Here it is: {ORDER}.",
            "It says {ORDER} in the email.",
            "I think it is {ORDER}.",
        ),
        volunteer=("The order is {ORDER}.", "I also have the order number here: {ORDER}."),
        read_back=("That is order {ORDER}, yes?", "I am looking at {ORDER} now, is that the one?"),
    ),
}

_NEW_ADDRESS = Verification(
    ask=("What is the new address?", "Where should we send it instead?", "Which address shall I enter?"),
    tell=("Please send it to {ADDRESS}.", "We moved to {ADDRESS}.", "The new one is {ADDRESS}."),
    volunteer=("The new address is {ADDRESS}.", "It should go to {ADDRESS} instead."),
    read_back=("I have entered {ADDRESS}, does that look right?", "So from now on {ADDRESS}, correct?"),
)

_NEW_PHONE = Verification(
    ask=("Which number should I save?", "What is your new phone number?", "What number shall I enter?"),
    tell=("The new number is {PHONE}.", "Please save {PHONE}.", "From now on it is {PHONE}."),
    volunteer=("The new number is {PHONE}.", "Please use {PHONE} from today on."),
    read_back=("I typed in {PHONE}, is that correct?", "Just checking, {PHONE}?"),
)

GOALS: tuple[Goal, ...] = (
    Goal(
        name="track_parcel",
        openings=(
            "I ordered a {item} {day} and would like to know where it is.",
            "Where is my parcel? I bought a {item} and have heard nothing since.",
            "I want to follow my delivery of a {item}, but the link in the mail is broken.",
            "Can you tell me how far order {ORDER} has got? It is a {item}.",
        ),
        checks=(
            Check("Did you get a shipping mail?", ("No, nothing at all.", "I think I deleted it.")),
            Check("When did you place it?", ("It was {day}.", "Must have been {day}.")),
        ),
        resolutions=(
            "Your parcel left the depot this morning. You can follow it with {TRACKING}.",
            "It is on its way, the tracking number is {TRACKING}.",
            "I see it in the sorting centre under {TRACKING}; it should move again tonight.",
        ),
    ),
    Goal(
        name="late_parcel",
        openings=(
            "My {item} should have been here {day} and it still is not.",
            "The delivery of my {item} is overdue and I need it for the weekend.",
            "The tracking page for {TRACKING} has not changed in days, and my {item} is late.",
            "I was promised a {item} sooner than this. What happened?",
        ),
        checks=(
            Check("Was anybody at home when the driver came?", ("Yes, all day.", "My neighbour was.")),
            Check(
                "Did you find a card in the mailbox?", ("No card, nothing.", "There was one, but no date.")
            ),
        ),
        resolutions=(
            "Parcel {TRACKING} was held at customs and has been released today.",
            "The truck broke down. {TRACKING} is now on another route and arrives tomorrow.",
            "I have marked {TRACKING} as urgent, so the courier will try again in the morning.",
        ),
    ),
    Goal(
        name="damaged_item",
        openings=(
            "The {item} I received is broken.",
            "I opened the box and the {item} has a big crack.",
            "My {item} arrived {day} in a soaked carton and does not work.",
            "Order {ORDER} came with a damaged {item}.",
        ),
        checks=(
            Check("Was the outside of the box damaged too?", ("Yes, one corner.", "No, it looked perfect.")),
            Check("Could you keep the packaging for the courier?", ("I can.", "I still have all of it.")),
        ),
        resolutions=(
            "A replacement leaves today, its tracking number is {TRACKING}.",
            "I am sending a new one. Please use {TRACKING} to see when it arrives.",
            "Put the old one in its box with the label {TRACKING} and we will refund you.",
        ),
    ),
    Goal(
        name="wrong_item",
        openings=(
            "You sent me a {item}, but I ordered something else.",
            "There was a {item} in the box. That is not mine.",
            "I got the wrong size of {item}.",
            "Something got mixed up: instead of my order I got a {item}.",
        ),
        checks=(
            Check("Is the item still sealed?", ("Yes, I did not touch it.", "I opened it, sorry.")),
            Check("Is there a packing slip inside?", ("There is, and it is wrong too.", "No slip at all.")),
        ),
        resolutions=(
            "Please return it with the label {TRACKING}; the right one goes out today.",
            "The correct item is on its way as {TRACKING}.",
            "I have booked an exchange. The courier brings {TRACKING} and takes the other one back.",
        ),
    ),
    Goal(
        name="change_address",
        openings=(
            "I moved {day} and my {item} is going to the old place.",
            "Can I change where my {item} gets delivered?",
            "I need to redirect order {ORDER}, I gave the wrong address.",
            "Please send my {item} to a different address.",
        ),
        checks=(
            Check("Is the change permanent?", ("Yes, for good.", "Only for this order.")),
            Check("Can the driver leave it at the door?", ("Yes please.", "Better not, ring the bell.")),
        ),
        resolutions=(
            "Done, parcel {TRACKING} has been redirected.",
            "The label of {TRACKING} now shows the new address.",
            "The courier has confirmed the change for {TRACKING}; expect one extra day.",
        ),
        verify={"ADDRESS": _NEW_ADDRESS},
    ),
    Goal(
        name="cancel_order",
        openings=(
            "I would like to cancel my order of a {item}.",
            "Please stop order {ORDER}, I do not need the {item} any more.",
            "I bought a {item} twice by accident and want to cancel one.",
            "Can I still call off the {item} I ordered {day}?",
        ),
        checks=(
            Check("May I ask for the reason?", ("I found it cheaper.", "I changed my mind.")),
            Check("Would a voucher be an option?", ("No, the money please.", "A voucher is fine.")),
        ),
        resolutions=(
            "It has shipped as {TRACKING} already, so please refuse it at the door.",
            "I stopped it in time; ignore any message about {TRACKING}.",
            "Cancelled. Should {TRACKING} still show up, send it back free of charge.",
        ),
    ),
    Goal(
        name="refund",
        openings=(
            "I returned a {item} and have not seen my money.",
            "How long does a refund take? I sent the {item} back {day}.",
            "I am waiting for the refund of order {ORDER}.",
            "You owe me a refund for a {item}.",
        ),
        checks=(
            Check("How did you pay?", ("By card.", "With a gift card.", "By bank transfer.")),
            Check("Do you have the drop-off receipt?", ("I kept it.", "I lost it, sadly.")),
        ),
        resolutions=(
            "Your return {TRACKING} was scanned today, so the money follows within a week.",
            "I see {TRACKING} at our warehouse and have released the refund.",
            "Return {TRACKING} was waiting for inspection; I approved it just now.",
        ),
    ),
    Goal(
        name="locked_account",
        openings=(
            "I cannot log in, it says my account is locked.",
            "My account got blocked after I tried to buy a {item}.",
            "The password reset never arrives and I need to see my {item} order.",
            "I am locked out since {day}.",
        ),
        checks=(
            Check("Did you change your email lately?", ("No.", "Yes, that may be it.")),
            Check("Do you see an error message?", ("Only that I should call you.", "It just reloads.")),
        ),
        resolutions=(
            "The account is open again, and your parcel {TRACKING} was not affected.",
            "I have reset it. Your open delivery {TRACKING} will show up after you log in.",
            "You can sign in now; the page will list {TRACKING} under current deliveries.",
        ),
    ),
    Goal(
        name="update_phone",
        openings=(
            "I have a new phone number and want to update my account.",
            "The courier keeps calling my old number about the {item}.",
            "Could you change the phone number on order {ORDER}?",
            "I lost my phone {day} and got another number.",
        ),
        checks=(
            Check("Shall I remove the old number?", ("Yes, please delete it.", "Keep it as a second one.")),
            Check("Do you want text messages about deliveries?", ("Yes, why not.", "Rather not.")),
        ),
        resolutions=(
            "Saved. The driver of {TRACKING} has the new number as well.",
            "I updated your account and parcel {TRACKING}.",
            "All changed, and notices about {TRACKING} will go to the new number.",
        ),
        verify={"PHONE": _NEW_PHONE},
    ),
    Goal(
        name="missing_invoice",
        openings=(
            "I need an invoice for the {item} I bought {day}.",
            "There was no bill in the box with my {item}.",
            "My company wants an invoice for order {ORDER}.",
            "The invoice for my {item} has a mistake in it.",
        ),
        checks=(
            Check("By mail or on paper?", ("By mail is fine.", "On paper, please.")),
            Check("Is it for a business?", ("Yes, for my office.", "No, private.")),
        ),
        resolutions=(
            "I sent it again; it mentions delivery {TRACKING}, so you can match it.",
            "The invoice is in your inbox, filed under shipment {TRACKING}.",
            "A corrected invoice for shipment {TRACKING} will reach you today.",
        ),
    ),
)
