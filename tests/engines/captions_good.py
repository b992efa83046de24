"""Captions that are as they should be: `WRITTEN` one by one to fool a check, `made` by a grammar.

A grammar and not a model: nothing that writes captions runs here, and its sentences must not be those the check was made from alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

WRITTEN: tuple[str, ...] = (
    # visible text that looks like a refusal, or is in the first person
    "A small bakery is seen from across the street, its green shutters half down. A cardboard sign hangs in the glass door and reads “Sorry, we are closed”. Below it, in smaller letters, stands “We cannot serve you today. Please try again tomorrow.” Two bicycles lean against the wall, and the pavement is wet with rain.",
    "A white mug stands on a cluttered desk beside a laptop. The mug is printed in black typewriter letters with the words 'I'm sorry, I can't adult today.' Steam rises from it. In the background, a cork board holds train tickets, a postcard of Lisbon and a photograph of two children on a swing.",
    'A protester with a grey beard holds a placard above a dense crowd in front of a town hall. Its hand-painted text is "I cannot believe I still have to protest this". Other placards read “NO” and “Not my budget!”. The sky is low and white, and police in yellow vests stand in a row at the steps.',
    'A screenshot of a chat window in dark mode shows two messages. The upper bubble, in blue, asks "Who is the man in this photo?". The lower one, in grey, answers "As an AI language model, I cannot identify people in images." A text field with the placeholder “Ask anything” runs along the bottom, next to a round send button.',
    "A robot made of tin cans sits on a park bench and holds a paper that reads ‘As an AI I have no lunch break’. Its eyes are two bottle caps, its arms are bent forks. Behind it, out of focus, joggers pass under yellow plane trees, and a squirrel looks up at the bench.",
    "A low-angle view of a lighthouse in thick fog. The tower fades from white into the grey air, so that it is impossible to tell where the wall ends and the sky begins. A rusted railing runs across the foreground, and the wet stones of the path shine. No people are in the picture.",
    "A portrait of a man in a hooded coat, lit by a single lamp from the left. His eyes lie in shadow and cannot be seen, and the hand that holds the lamp is gloved. The name on his badge is too small to read. The background is a plain, dark wall with a few scratches.",
    'A street musician plays a cello under a bridge, her eyes closed. The text on the open case in front of her reads "I can\'t sing, so I play", written in chalk on black cloth. A few coins lie in it. Behind her, a cyclist passes as a blur of red and white.',
    "A vintage poster shows a nurse with her finger on her lips, on a background of flat teal. Large cream letters at the top say “I WILL NOT TALK”, and at the bottom there is a line in a condensed typeface: “Unable to comply? Ask your officer.” The paper is creased along the middle and torn at one corner.",
    "A letter on cream paper, typed and signed in blue ink. It begins “Dear Mr. Hale, I regret to inform you that I am unable to attend. I apologize for the late reply.” The signature is a long, flat line. The letter lies on a leather desk pad beside brass scales and a fountain pen.",
    # visible text in other languages
    "A narrow street in Hamburg after rain. Above a shop with wooden shelves hangs a sign in Gothic letters: „Bäckerei und Konditorei seit 1887, täglich frisches Brot und feine Kuchen aus unserer eigenen Backstube“. A woman with an umbrella walks past the window, and the wet cobbles reflect the warm light from inside the shop.",
    "A blue enamel plate on a limestone wall in Paris reads «Défense d'afficher, loi du 29 juillet 1881». Beside it, a climbing rose with pale pink flowers has been tied to an iron hook. The light is flat, the wall has stains of rust, and at the right edge a drainpipe runs from top to bottom.",
    "A shop front in Chengdu at night. The red lantern at the left carries the characters “福” and “囍”, and the light box above the door reads “成都小吃 麻辣火锅 欢迎光临 营业时间上午十点至晚上十一点”. Three men sit on low stools around a pot from which steam rises, and one of them looks at his phone.",
    'A road sign at a junction in the desert, with white text on green. Its upper line is in Arabic, “مطار الملكة علياء الدولي والعاصمة عمان والبحر الميت”, and its lower line in English, "Queen Alia Airport". A white pickup waits at the junction with its indicator on, and the hills behind are hazy.',
    "A page from a Russian primer lies open on a school desk. The headline reads “Азбука для маленьких”, and below it a rhyme is printed in two columns: “Мама мыла раму, папа читал газету, а бабушка пекла пироги с яблоками и капустой”. At the left a drawing shows a cat with a ball of wool.",
    'The entrance of a metro station in Tokyo, photographed from above. The yellow sign says 「出口 A5 銀座四丁目交差点 歌舞伎座方面」 with "Exit A5" under it in smaller letters. Commuters in dark coats go down the stairs in two streams, divided by a steel handrail, and one child in a red hat goes up.',
    'A hand-painted menu on a chalkboard in a Lisbon tavern: "Bacalhau à brás com azeitonas e salsa, arroz de marisco para duas pessoas, pastéis de nata e café, tudo por 15 €". The board leans against a wall of blue and white tiles. A tabby cat sleeps on the step in front of it.',
    "A map of the centre of Paris in muted colours. The streets are labelled, e.g. Rue de la Paix, Avenue de l'Opéra, Place de la Concorde, Rue de Rivoli, Boulevard des Capucines and Quai du Louvre; the Seine curves across the lower third in pale blue, and the parks are filled with a light green.",
    'A still from a Spanish film with white subtitles at the bottom, which read "No me digas que no lo sabías, porque todos lo sabían y nadie dijo nada en la cena". A woman in a yellow cardigan stands at a window with her back to the camera, and a man sits at a table set for six.',
    "The cover of a paperback by Gabriel García Márquez, titled “Cien años de soledad”, with an illustration of a galleon in a forest. Los Angeles and Buenos Aires are mentioned on a red sticker at the right. The spine is cracked, and the corners of the cover are soft from use.",
    "The Greek letters α, β and γ label the three corners of a triangle drawn in chalk, and π stands beside a circle. A formula below them reads “α + β + γ = 180°”. The blackboard is old and scratched, and at its lower edge lie a wet sponge and two pieces of yellow chalk.",
    "A calligrapher in a dark blue kimono writes the kanji 愛 (love) with a thick brush on a sheet that hangs from a wooden frame. Ink drips from the last stroke. Behind her stand six people in white socks, and tatami mats with black borders lead to an open sliding door and a mossy garden.",
    # repeated things and repeated text
    "Three chairs stand in a row against a white wall. The left chair has a blue seat, four thin oak legs and a curved back. The middle chair has a green seat, four thin oak legs and a curved back. The right chair has a yellow seat, four thin oak legs and a curved back. Their shadows fall to the right.",
    "Four identical mugs hang from hooks below a shelf. The first mug is red with a white dot on its handle. The second mug is blue with a white dot on its handle. The third mug is green with a white dot on its handle. The fourth mug is black with a white dot on its handle, and its rim is chipped.",
    "A shop window in January is covered with paper letters that read “SALE SALE SALE SALE SALE SALE SALE SALE”. Behind them stand two mannequins in winter coats, one in camel and one in navy, and a third without clothes. A man in a cap is seen as a reflection in the glass, taking the picture.",
    "A school blackboard with the sentence “I will not waste chalk. I will not waste chalk. I will not waste chalk. I will not waste chalk. I will not waste chalk. I will not waste chalk.” written in a child's hand. The boy who wrote it stands with his back to us, in shorts, with chalk dust on his sleeves.",
    "A pattern of stripes fills the picture: black, white, black, white, black, white and black from left to right, each about 5 cm wide. A single red thread runs across all of them at a slight angle. The weave of the cloth is visible, and at the top right a corner is folded over.",
    "A chessboard seen from above in hard light. The squares alternate between cream and dark brown, and row after row after row of them is empty, except for a white king on e1, a black king on e8 and a white pawn on e4. The king's shadow is as long as three squares.",
    "A settings page with five rows. Each row has a label and a button: “Camera” with a button labelled “Allow”, “Microphone” with a button labelled “Allow”, “Location” with a button labelled “Ask”, “Contacts” with a button labelled “Deny”, and “Photos” with a button labelled “Allow”. The buttons are pill-shaped and light grey.",
    "A grid of five by five coloured tiles. The first row is red, blue, green, red, yellow; the second row is blue, blue, red, green, red; the third row is green, red, yellow, yellow, blue; the fourth row is red, green, red, blue, green; and the fifth row is yellow, red, blue, green, red. The joints are white.",
    "A digital clock on a bedside table shows 00:00 in red digits, and beneath it the odometer-like counter of an old radio shows 0 0 0 0 0 7. A glass of water, a pair of folded glasses and a paperback lie around it. The room is dark apart from the light of the digits.",
    "A wall of old television sets, stacked four by three. The sets in the top row show static, the sets in the middle row show a face, the sets in the bottom row show static, and one set at the bottom right shows nothing. Cables hang down between them like vines.",
    "A long table at a wedding, seen from its end. Plate after plate after plate is set with a folded napkin and a sprig of rosemary, candles burn between vases of white ranunculus, and chair after chair is tied with a ribbon. At the far end two children have begun to eat the bread.",
    "A wallpaper sample printed with small swallows: one swallow flies left, one swallow flies right, one swallow flies up, one swallow flies down, and then the pattern starts again. The ground is a chalky green, the birds are ink blue, and a strip of masking tape with “No. 12” holds the sheet to a board.",
    "Three lamps hang over a bar. The left lamp has a dented shade of green enamel, a twisted cloth cable, a brass socket and a bare bulb with a visible filament. The middle lamp has a dented shade of green enamel, a twisted cloth cable, a brass socket and a bare bulb with a visible filament. The right lamp has a dented shade of green enamel, a twisted cloth cable, a brass socket and no bulb at all.",
    "A mast in a harbour, painted red, white, red, white, red, white, red, white from bottom to top. It is very, very, very tall, or the lens makes it so: the ships at its foot look like toys. A gull sits on the topmost ring. The evening sky behind it is pale green, with one pink cloud.",
    # visible markup, code and labels
    'A screenshot of a code editor with a dark theme. Line 1 reads “<!DOCTYPE html>”, line 2 “<html lang="en">” and line 5 “<h1>Hello, world</h1>”. The tags are coloured pink, the attributes green. A panel at the left lists three files, and the status bar at the bottom is blue.',
    'A screenshot of a README on a code hosting site. The raw text begins with "# Installation" and continues with "- pip install foo" and "- **Do not** use sudo". Beside it, a preview pane shows the same lines formatted, with a large heading, two bullets and a word in bold. A green button is at the upper right.',
    "A phone shows a social media post of a sunset over rice fields. The caption under the picture is “Last night in Ubud 🌅 #sunset #bali #nofilter **link in bio**”, and a row of icons, namely a heart, a speech bubble and a paper plane, runs below. The battery symbol at the top says 17 %.",
    "A photograph of a laptop with a terminal window. The last lines are `pip install -r requirements.txt` and \"ERROR: No matching distribution found for foo_bar==1.2\". The keyboard is lit in white, a sticker of a penguin covers the logo, and a mug with the text '404: coffee not found' stands beside it.",
    "A page of a printed manual about chat models, with a grey code box in the middle. Its three lines are “<|im_start|>user”, “Hello!<|im_end|>” and “<|im_start|>assistant”. The paragraph above it is set in a serif typeface, a yellow marker lies across the lower corner, and the page number is 112.",
    "A slide with the title “Q3 results” in navy on white. Below it stand three bullets: “• Revenue up 12%”, “• Costs flat” and “• Hiring paused”. A bar chart at the right has four bars in teal, the last of which is the tallest, and a thin grey line marks the target of 4.5 m.",
    "An open exercise book with squared paper. In the left column a child has written “1. The cat sat. 2. The dog ran. 3. The bird flew.” in pencil, and a teacher has ticked each line in red. The right page is empty except for a doodle of a rocket with three windows.",
    "A product page in a web shop shows a pair of white trainers from the side. To the right stand the name “Runner* 5”, the price “€ 89.90**” and the footnotes “* vegan” and “** incl. VAT”. A black button reads “Add to cart”, and below it five grey stars are followed by the number (214).",
    "A table in a scientific paper with three columns headed “| Model |”, “| n |” and “| p |” in a monospaced typeface. The rows are separated by thin rules, and the smallest value, 0.003, is set in bold type. A caption below it reads “Table 2: Description: results by model.” The page is slightly skewed.",
    "An e-mail in a browser window. The subject line reads “Caption: needed by Friday”, the sender is “dana@example.org”, and the body says “Hi all, the caption: ‘A boat at dawn’ is fine by me. <br> Dana”. A paper-clip icon stands next to an attachment named “boat_final_v2.png”, and the avatar is a purple circle.",
    "A photograph of a whiteboard after a meeting. Red arrows connect the words \"draft -> review -> print\", and in the corner somebody wrote '## TODO' and underlined it twice. A magnetic sponge, three dry pens (one without its cap) and a coffee ring on the ledge complete the scene. The light comes from a ceiling panel.",
    'A meme in two panels, with white capitals with a black outline. In the upper panel a cat looks at a salad, and the text is "ME: I\'M ON A DIET"; in the lower panel the same cat sleeps in an empty pizza box, and the text is "ALSO ME:". The colours are oversaturated, and JPEG blocks are visible.',
    # colons, numbers, abbreviations and hyphens in the prose
    "Close-up: a honeybee on a purple thistle, seen from the side at roughly life size x 3. Its hind legs carry full pollen baskets, orange against the dark hairs. The background is a smooth, cool green with two round highlights, and the depth of field is so shallow that only the eye and one wing are sharp.",
    "Two worlds in one picture: above the water line, a beach with palms and a red-and-white parasol; below it, a reef with striped fish. The line runs across the middle in a slow S-curve. The upper half is warm and overexposed, the lower half is blue-green, with caustics on the sand.",
    "A technical drawing of a valve with dimensions in mm: 12.5 at the inlet, 8.0 at the outlet, approx. 46 overall. Parts are marked (1) to (4), i.e. body, spring, ball and cap. The lines are thin and black, hidden edges are dashed, and a title block at the lower right gives the scale as 1:2.",
    "A palette of five swatches with their hex codes beneath: #0B3C5D, #328CC1, #D9B310, #1D2731 and #F5F5F5. The swatches are squares with rounded corners, placed in one row on a white ground. Above them stands the title “Harbour – autumn/winter”, and a small logo, two overlapping circles, is at the lower right.",
    "A mountain hut at about 2,400 m a.s.l., photographed at 6 a.m. with frost on its shingles. Dr. A. Meier, whose name is on a brass plate, seems to own it. Smoke rises from the chimney at a right angle, the first sun touches the peaks at the left, and the valley is filled with fog.",
    "The number plate of the red Mini is B-AK 1959 and that of the van behind it is hidden. Both cars are parked half on the kerb of a street lined with lime trees. A man in a hi-vis vest writes a ticket, while a woman runs towards him with a bag of groceries from which leeks stick out.",
    'A ruler, a 12" vinyl record and a 5\' 10" cardboard figure of a singer stand in the window of a second-hand shop. The record\'s sleeve is orange with the word "HITS" in brown, and the figure\'s left hand has been bent backwards. Dust lies on everything, and a moth is stuck to the pane.',
    "The dogs' bowls stand in a row on the terrace, and the '90s tracksuit of the man who fills them is purple and green. 'Rock 'n' roll' is printed on its back. Four of the five dogs look at his hands; the fifth, a greyhound, looks at the camera. The terrace tiles are wet.",
    "A lorry — long, white, without lettering — waits at a level crossing. Beyond the barrier – striped red and white – a goods train passes from right to left; its wagons carry timber, gravel and new cars. The evening sun is low, so every edge has a thin line of orange, and the sky is clear.",
    "A black-and-white photograph of a jazz trio (piano, bass, drums) on a low stage. The pianist, in a three-piece suit, leans so far back that his stool stands on two legs; the bassist laughs; the drummer is a blur. Smoke hangs in the beam of a single spotlight. Grain is visible throughout.",
    "An aerial photograph of a car park in which the bays are numbered 101, 102, 103, 104, 105, 106, 107, 108, 109 and 110 in yellow paint. Seven of them are taken. A trolley stands alone in bay 108, and its shadow is four times as long as it is wide. Weeds grow from the cracks.",
    # endings
    "A neon sign over a diner at dusk, its tubes pink and blue, one of them broken. Two trucks are parked at an angle in front, and the windows of the diner glow yellow. A waitress with a coffee pot looks out. The sky is violet with a last stripe of orange, and the sign reads “EAT HERE”",
    "A business card on grey slate, slightly tilted. The name is embossed in copper, the rest is printed in small black capitals. A sprig of eucalyptus enters from the left and throws a soft shadow across the corner of the card. At its lower edge stands the address of the studio, www.northandpine.com",
    'The last page of a picture book: a bear asleep in a bed that is much too short, its feet sticking out at the bottom, with a candle on the sill and snow behind the window. The style is watercolour with ink outlines. Under the drawing, in a round typeface, stand the words "Good night, dear bear..."',
    "A stack of three old suitcases serves as a bedside table in a room with a sloping ceiling. On top stand a lamp with a pleated shade and an alarm clock; the bed has a patchwork quilt in reds and creams. A cat lies on the pillow and stares straight into the lens (its eyes are green).",
    "A goalkeeper at full stretch, horizontal in the air, touches the ball with the tips of his gloves. The net bulges behind him from the wind, the crowd is a wall of colour, and bits of turf fly from his left boot. The scoreboard at the top shows 1:1 in the 90th minute. What a save!",
    "A tiny frog sits on the tip of a thumb, its skin a bright, wet green with a black stripe from nose to hip. The thumb's ridges and a small scar are in sharp focus. Everything else dissolves into shades of brown. How long can it have stayed there before it jumped?",
    # things that look like leaks
    "A dental assistant: young, in mint-green scrubs, with a head torch. She bends over a patient of whom only the chin and a paper bib are seen. The steel tray next to her holds a mirror, two probes and a syringe. The lamp above is round and throws six overlapping shadows. The walls are white.",
    "The megalithic temples of Ġgantija on Gozo, seen from the south in late light. Blocks of coralline limestone, some higher than a man, lean against each other, and steel scaffolding supports the façade. Visitors in sun hats follow a raised walkway. The sky is a cloudless, deepening blue, and the grass is dry.",
    "A heart shape <3 and an arrow -> have been drawn with a finger on a fogged window, and below them the initials A + M. Through the lines one sees a wet garden with a swing. Drops have run down from the heart and turned it into something like a jellyfish. The frame is white, and its paint peels.",
    "A screenshot of an API console. The request body reads \"{'name': 'Ada', 'roles': ['user', 'assistant']}\" and the response is “{\"status\": \"ok\"}” with the code 200 in green. Tabs named “Body”, “Headers” and “Cookies” run along the top, and a purple button says “Send”. The left column lists eleven saved requests.",
    "The user interface of an old synthesizer program: two rows of knobs, four faders and a keyboard of 61 keys. The system: grey plastic bezels, orange lettering and a fake wood panel on both sides. A window titled “Patch 07 – Brass” floats above it, and the mouse pointer is an hourglass.",
    "A music player on a phone in landscape. The cover at the left shows a desert road; at the right stand the title “No Image”, the artist “Please Send Help” and a progress bar at 1:07 of 3:58. The controls are a triangle and two double arrows. The background is a blurred, darkened copy of the cover.",
    "A vending machine in an empty hospital corridor at night. Its display reads “ERROR: UNABLE TO PROVIDE ITEM. CONTACT ASSISTANT.” in green dots, one spiral holds a bag of crisps that has not dropped, and a handwritten note, taped to the glass, says “It ate my 2 €, I'm sorry”. The floor mirrors the machine's cold light.",
    "A tombstone under an ivy-covered oak, carved with a skull, an hourglass and the line “As I am now, so you must be; prepare for death and follow me”. The dates are 1699 and 1742. Moss has filled the lower letters, and a jam jar with fresh snowdrops stands on the plinth beside an unlit candle.",
)


def made(seed: int, count: int) -> list[str]:
    """So many captions of 60 to 200 words, all different; the same seed makes the same."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found.setdefault(_caption(rng))
    return list(found)


def _caption(rng: random.Random) -> str:
    head, body = rng.choice(SCENES)(rng)
    aim = rng.randint(65, 150)
    sentences = [head]
    pool = [*body, *_common(rng)]
    rng.shuffle(pool)
    for sentence in pool:
        if len(" ".join(sentences).split()) >= aim:
            break
        sentences.append(sentence)
    if rng.random() < 0.25:
        sentences.append(_ending(rng))
    return (" " if rng.random() < 0.9 else "\n\n").join(sentences)


COLOURS = [
    "red",
    "pale blue",
    "off-white",
    "olive green",
    "mustard yellow",
    "charcoal",
    "teal",
    "rust-coloured",
    "#2F4F4F",
    "cream",
    "burgundy",
    "lilac",
    "sand",
    "navy",
]
MATERIALS = [
    "oak",
    "brushed steel",
    "glazed clay",
    "velvet",
    "raw concrete",
    "rattan",
    "smoked glass",
    "corduroy",
    "walnut",
    "canvas",
    "brass",
    "felt",
]
PLACES = [
    "at the left",
    "on the far right",
    "in the lower third",
    "near the top edge",
    "behind it",
    "in the middle distance",
    "just off centre",
]
LIGHT = (
    "Soft light from a window at the left models the forms and leaves the right side in half-shadow.",
    "The light is hard and high, with short, sharply edged shadows.",
    "Overcast light flattens the colours; there are hardly any shadows.",
    "A low sun behind the scene draws a thin bright line around every edge.",
    "Two lamps outside the frame give a cool light from above and a warmer one from the right.",
    "The exposure is long: what moves has become a smear, and what stands is sharp.",
)  # fmt: skip
SIGNS = (
    "SALE SALE SALE", "Sorry, we're closed", "Bäckerei Müller – täglich frisch", "Défense de fumer, merci de votre compréhension",
    "请勿吸烟", "出口 → 3号线", "ممنوع الوقوف", "Выход в город", "おすすめ ラーメン 850円", "I cannot stand Mondays", "<h1>Welcome</h1>",
    "**NEW** Version 2.0", "#nofilter #goldenhour", "Se vende pan casero y dulces de la abuela", "No. 5 – Rue de l'Église",
    "We're sorry for the inconvenience", "50% OFF!", "1. Wash 2. Rinse 3. Repeat", "Achtung, Stufe!", "Keep out", "E = mc²",
    "- milk\n- eggs\n- bread", "Σας ευχαριστούμε", "환영합니다", "Warum ist die Banane krumm und der Himmel über Berlin so blau?",
    "I'm unable to can", "Caption: none", "HELLO my name is", "À louer: appartement de trois pièces avec vue sur le port",
    "</div>", "user: admin", "C:\\new\\table", "The end?", "Do not feed the ducks!", "$4.99/lb", "as is", "NO NO NO NO NO NO NO",
)  # fmt: skip
MARKS = (("“", "”"), ('"', '"'), ("“", "”"), ('"', '"'), ("'", "'"), ("‘", "’"), ("«", "»"), ("„", "“"))
PARAGRAPHS = (
    "It was the year of the great frost. The river had been closed to ships since November, and boys skated as far as the mill. I could not, for I had no skates; I am sorry for it still.",
    "Pursuant to § 4 (2) the tenant shall not, without prior consent, alter the premises. The tenant shall not sublet. The tenant shall not keep animals other than fish.",
    "Sehr geehrte Damen und Herren, hiermit kündige ich den oben genannten Vertrag fristgerecht zum nächstmöglichen Zeitpunkt und bitte um eine schriftliche Bestätigung.",
    "Il était une fois un petit roi qui vivait seul dans un grand palais au bord de la mer et qui ne savait pas nager, ni lire, ni compter jusqu'à dix.",
    "本合同一式两份，甲乙双方各执一份，具有同等法律效力。未尽事宜，由双方协商解决。",
    "Step 1: open the lid. Step 2: insert the tray. Step 3: close the lid. Step 4: press “Start”. Do not open the lid while the lamp is red.",
)  # fmt: skip


ASIDES = (
    "The Bell Tower (钟楼) and the Drum Tower (鼓楼) are marked with red dots.",
    "A graph plots the points (0, 0), (1, 1), (2, 4) and (3, 9), joined by a smooth curve.",
    "The path C:\\new\\temp\\reports is shown in the address bar of a window.",
    "The request body and the response headers are displayed side by side.",
    "A placeholder icon indicates that no image has been uploaded to the profile yet.",
    "Fog has swallowed the far bank, so that it is impossible to tell the water from the sky.",
    "A notice concerns violations of company policy, and another the privacy policy of the library.",
    "A portrait of Queen Elizabeth I hangs above the mantel, opposite one of King Charles I.",
    '“OPEN" is written on the door, and "PUSH” on the brass plate below it.',
    "A sign reads ''Bitte nicht rauchen, das gilt auch für den Hof und die Treppe''.",
    "The tray holds coq au vin, pot au feu, crème brûlée and a tarte aux pommes, each with a small paper flag.",
    "The team photo names Jan van der Berg, Luuk de Jong, Mathijs de Ligt, Virgil van Dijk and Frenkie de Jong.",
    "Streets named Calle de la Cruz, Plaza del Sol, Paseo de los Tristes and Cuesta del Chapiz wind up the hillside.",
    "On the left: a red barn. On the right: a white silo. In between: a rusty tractor.",
    "The array [1, 2, 3, 4] and the matrix [[1, 0], [0, 1]] are written on the board.",
    'A label says 3/4", and next to it lies a 12" ruler beside a 27" monitor.',
    "A column of numbers, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42 and 45, runs down the left edge.",
    "A woman in red, a woman in blue, a woman in green, a woman in red and a woman in yellow stand in a line.",
    "The first lamp is on, the second lamp is off, the third lamp is on, the fourth lamp is off, the fifth lamp is on.",
    "There is a blue door, then a green door, then a blue door, then a green door, then a blue door along the corridor.",
    "Rows and rows and rows of tulips in red, yellow and pink stretch to the horizon.",
    "An assistant hands over a clamp; the user manual of the machine lies open on the trolley.",
    "The keyboard shortcut Ctrl+C and the symbols * and # are visible on the keys.",
    "A five-star rating (* * * * *) is printed beneath the title.",
    "The snippet x_1 = my_list[0] * 2 and the name __init__ can be seen on the monitor.",
    "The word f**k has been sprayed over with silver paint.",
    "Three parts are labelled: 1 (roots), 2 (stem) and 3 (leaf).",
    "The dogs' leashes, the cats' bowls and the birds' cages hang from hooks.",
    "He wears a '70s-style jacket and 'hippie' sunglasses, and there's a '58 Chevy behind him.",
    "‚Bitte Tür schließen, es zieht und die Katze läuft weg‘, it says on the door.",
    "The temperature display shows –12 °C, approx. 10 °F, at 6:45 a.m.",
    "A small plaque is dedicated “To Mr. & Mrs. J. O'Neill, etc.”",
    "The sky could not be clearer, and the sea could not be bluer.",
    "Please note the second cat, half hidden by the curtain.",
)
"""Sentences that one check or another was once, or might be, wrong about."""


def _quote(rng: random.Random, text: str) -> str:
    left, right = rng.choice([m for m in MARKS if not set("".join(m)) & set(text.replace("’", "'"))])
    if left in "'‘" and "\n" in text:
        left, right = "“", "”"
    return f"{left}{text}{right}"


def _sign(rng: random.Random) -> str:
    return _quote(rng, rng.choice(SIGNS))


def _colours(rng: random.Random) -> str:
    return " and ".join(rng.sample(COLOURS, 2))


Parts = tuple[str, list[str]]


def _room(rng: random.Random) -> Parts:
    room = rng.choice([
        "living room",
        "bedroom",
        "studio",
        "waiting room",
        "attic",
        "library",
        "workshop",
        "hotel lobby",
    ])
    chairs = rng.choice(("chair", "armchair", "stool"))
    legs, back = rng.choice(MATERIALS), rng.choice(("a curved back", "a low back", "no back", "a back of woven cane"))
    one, two, three = rng.sample(COLOURS, 3)
    return f"A {room} with {rng.choice(('high', 'sloping', 'panelled', 'coffered'))} ceilings is shown {rng.choice(('from a corner', 'from the doorway', 'at eye level', 'from slightly above'))}.", [
        f"The left {chairs} is {one}, with {legs} legs and {back}; the middle {chairs} is {two}, with {legs} legs and {back}; the right {chairs} is {three}, with {legs} legs and {back}.",
        f"A {rng.choice(MATERIALS)} table, approx. {rng.randint(80, 220)} cm long, holds {rng.choice(('a bowl of lemons', 'three candles', 'an open atlas', 'a half-finished jigsaw'))}.",
        f"Above the sofa hangs a framed print that says {_sign(rng)} in {rng.choice(COLOURS)} letters.",
        f"The walls are {_colours(rng)}, and the floor is {rng.choice(MATERIALS)} (with a {rng.choice(COLOURS)} rug).",
        "Books fill the shelves from floor to ceiling: some lie flat, some lean, and a few have slips of paper between their pages.",
    ]  # fmt: skip


def _street(rng: random.Random) -> Parts:
    town = rng.choice([
        "Lisbon",
        "Osaka",
        "Graz",
        "Valparaíso",
        "Tbilisi",
        "Leeds",
        "Marrakesh",
        "Québec",
        "San Sebastián",
        "Łódź",
    ])
    return f"{rng.choice(('A narrow street', 'A busy crossing', 'A row of shops', 'An almost empty square', 'A covered market'))} in {town}, photographed {rng.choice(('at dusk', 'around noon', 'after rain', 'in light snow', 'from a balcony'))}.", [
        f"A sign over the door reads {_sign(rng)}, and a smaller one below it reads {_sign(rng)}.",
        f"{rng.randint(2, 9)} people wait {rng.choice(PLACES)}; one wears a {rng.choice(COLOURS)} coat, another carries a {rng.choice(COLOURS)} umbrella.",
        f"A {rng.choice(COLOURS)} tram, No. {rng.randint(2, 64)}, comes around the bend, its destination board showing {_sign(rng)}.",
        f"The façades are {_colours(rng)}, with {rng.choice(('wrought-iron balconies', 'peeling shutters', 'tiled ground floors', 'washing lines'))} on every storey.",
        "Cables cross the sky from house to house, and a gull sits on one of them.",
        f"On a lamp post, stickers overlap: {_sign(rng)}, {_sign(rng)} and a torn one of which only a star is left.",
    ]  # fmt: skip


def _screen(rng: random.Random) -> Parts:
    labels = rng.sample(
        [
            "Home",
            "About",
            "Pricing",
            "Log in",
            "Datei",
            "Bearbeiten",
            "设置",
            "Profil",
            "Aide",
            "Carrito",
            "OK",
            "Cancel",
            "Help",
            "Suche",
        ],
        5,
    )
    quoted = [_quote(rng, label) for label in labels]
    return f"A screenshot of {rng.choice(('a web page', 'a code editor', 'a spreadsheet', 'a weather app', 'a chat', 'a file manager'))} in {rng.choice(('light', 'dark'))} mode.", [
        f"The bar at the top has the entries {', '.join(quoted[:4])} and {quoted[4]}.",
        f"A button labelled {quoted[0]} stands beside a button labelled {quoted[1]} and a button labelled {quoted[2]}, all in {rng.choice(COLOURS)}.",
        f"The address field shows {rng.choice(('https://example.org/a_b?c=1&d=2', 'www.gutenberg.org', 'localhost:8080/index.html'))} next to a padlock icon.",
        f"A line of source text reads {_quote(rng, rng.choice(('<a href=/x>link</a>', 'print(x_1, *args)', '## Usage', '| a | b |', 'npm run build --watch', '{a: 1}')))} in a monospaced typeface.",
        f"The main heading is {_sign(rng)}, set at roughly {rng.randint(20, 64)} px.",
        f"A dialog in the middle asks {_sign(rng)}; its border is {rng.choice(COLOURS)}.",
        f"The clock in the corner shows {rng.randint(0, 23):02}:{rng.randint(0, 59):02}, and the battery stands at {rng.randint(3, 99)}%.",
    ]  # fmt: skip


def _document(rng: random.Random) -> Parts:
    text = rng.choice(PARAGRAPHS)
    marks = ("“", "”") if '"' in text else ('"', '"') if "“" in text else rng.choice(MARKS[:2])
    return f"A {rng.choice(('scanned', 'photographed', 'slightly skewed', 'creased'))} page of {rng.choice(('a contract', 'an old novel', 'a letter', 'a manual', 'a school book'))} on {rng.choice(COLOURS)} paper.", [
        f"Its first paragraph reads: {marks[0]}{text}{marks[1]}.",
        f"A stamp {rng.choice(PLACES)} says {_sign(rng)}, in {rng.choice(COLOURS)} ink.",
        f"The page number, {rng.randint(2, 480)}, stands at the bottom; the margin is about {rng.randint(1, 4)}.{rng.randint(0, 9)} cm wide.",
        "A handwritten note in pencil runs up the right margin and is underlined twice.",
        f"Three columns are headed {_quote(rng, 'Qty')}, {_quote(rng, 'Item')} and {_quote(rng, 'Total (€)')}.",
    ]  # fmt: skip


def _nature(rng: random.Random) -> Parts:
    animal = rng.choice([
        "heron",
        "red squirrel",
        "highland cow",
        "barn owl",
        "hedgehog",
        "grey seal",
        "kingfisher",
        "fox cub",
        "stag beetle",
    ])
    return f"A {animal} {rng.choice(('looks straight at the camera', 'stands in profile', 'is caught in mid-movement', 'rests on a mossy stone'))}, {rng.choice(('in a reed bed', 'at the edge of a wood', 'on a frosty meadow', 'beside a mountain stream'))}.", [
        f"Its coat or plumage ranges from {rng.choice(COLOURS)} to {rng.choice(COLOURS)}, with fine dark lines towards the head.",
        "Every hair near the eye is sharp, whereas the hindquarters are already out of focus.",
        f"Small flowers, {_colours(rng)}, are scattered {rng.choice(PLACES)}.",
        f"The hills beyond it are layered, each one paler than the one before; the last is hardly darker than the sky, i.e. at a distance of {rng.randint(5, 40)} km or so.",
        "Drops of water hang from the grass, and each holds a tiny, upside-down picture of the scene.",
    ]  # fmt: skip


def _product(rng: random.Random) -> Parts:
    thing = rng.choice([
        "kettle",
        "backpack",
        "wrist watch",
        "desk lamp",
        "pair of trainers",
        "bottle of shampoo",
        "camera",
        "folding bicycle",
    ])
    return f"A product photograph of a {thing} in {_colours(rng)}, on a {rng.choice(('seamless white', 'graduated grey', 'marble', 'pastel'))} ground.", [
        f"The label reads {_sign(rng)}, with {_quote(rng, str(rng.randint(50, 900)) + ' ml')} in small type below.",
        f"It measures approx. {rng.randint(10, 60)} x {rng.randint(10, 60)} x {rng.randint(2, 30)} cm, to judge by the hand {rng.choice(PLACES)}.",
        f"The handle is made of {rng.choice(MATERIALS)}, the rest of {rng.choice(MATERIALS)}; the seams are stitched in {rng.choice(COLOURS)} thread.",
        f"A price tag, tied on with string, shows {_quote(rng, '€ ' + str(rng.randint(5, 300)) + '.99')}.",
        "A faint reflection is visible below it, as on a polished surface.",
    ]  # fmt: skip


def _poster(rng: random.Random) -> Parts:
    return f"A {rng.choice(('concert', 'travel', 'film', 'safety', 'election'))} poster in {rng.choice(('flat', 'screen-printed', 'Art Deco', 'grainy', 'minimalist'))} style, mainly {_colours(rng)}.", [
        f"The headline, in {rng.choice(('condensed', 'hand-drawn', 'slab-serif', 'stencil'))} capitals, is {_sign(rng)}.",
        f"Below the drawing stands {_sign(rng)}; at the very bottom, {_sign(rng)} is set in a size that can barely be read.",
        f"A {rng.choice(('ship', 'guitar', 'lighthouse', 'face in profile', 'bicycle'))} fills the {rng.choice(('left half', 'centre', 'upper two thirds'))}, built from {rng.randint(3, 9)} simple shapes.",
        f"A date ({rng.randint(1, 28)}.{rng.randint(1, 12)}.{rng.randint(1925, 2025)}) runs up the right edge.",
        "The paper has yellowed, and four holes show where pins have held it.",
    ]  # fmt: skip


def _map(rng: random.Random) -> Parts:
    return f"A {rng.choice(('topographic', 'transit', 'hand-drawn', 'weather', 'tourist'))} map in {_colours(rng)} covers the whole picture.", [
        f"Towns are labelled {_quote(rng, 'Sankt Peter')}, {_quote(rng, 'Vila Nova de Gaia')} and {_quote(rng, 'Красный Яр')}.",
        f"The line {rng.choice('ABCDU')}{rng.randint(1, 9)} runs from the upper left to the lower right, crosses a river twice and ends at {_sign(rng)}.",
        f"Contours are drawn every {rng.choice((10, 20, 50))} m; the highest point, marked by a triangle, is {rng.randint(300, 4800)} m.",
        f"A scale of 1:{rng.choice(('25,000', '50,000', '1 000 000'))} and a compass rose are placed {rng.choice(PLACES)}.",
        f"Streets such as Rue de la Paix, Calle de Alcalá and Via del Corso are set in italics, in {rng.choice(COLOURS)}.",
    ]  # fmt: skip


def _meme(rng: random.Random) -> Parts:
    return f"A meme in {rng.choice(('two', 'three', 'four'))} panels, {rng.choice(('with thick black outlines', 'heavily compressed', 'made from a film still', 'drawn with a mouse'))}.", [
        f"In the first panel, a {rng.choice(('cat', 'goose', 'toddler', 'knight'))} says {_sign(rng)}; in the second panel, it says {_sign(rng)}.",
        f"In the last panel, the same figure stares at the viewer, and the text is {_sign(rng)}.",
        f"The text is white with a black outline, except for one word in {rng.choice(COLOURS)}.",
        f"A watermark, {_quote(rng, 'made with memelab.io')}, is placed {rng.choice(PLACES)}.",
        "The joke rests on the contrast between the solemn face and the silly words.",
    ]  # fmt: skip


def _portrait(rng: random.Random) -> Parts:
    who = rng.choice([
        "elderly fisherman",
        "girl of about ten",
        "drummer",
        "welder",
        "bride",
        "chess player",
        "nurse",
        "goalkeeper",
    ])
    return f"A {rng.choice(('half-length', 'close', 'full-length', 'candid'))} portrait of a {who} in front of a {rng.choice(COLOURS)} wall.".replace(" a elderly", " an elderly"), [
        f"The jacket is {rng.choice(COLOURS)} {rng.choice(MATERIALS)}, and a badge on it reads {_sign(rng)}.",
        "The gaze goes past the camera; the mouth is closed, though the corners seem about to rise.",
        f"One hand holds a {rng.choice(('rope', 'paper cup', 'folded newspaper', 'helmet'))}, the other is in a pocket.",
        f"A tattoo on the forearm says {_sign(rng)}, in letters about {rng.randint(1, 3)} cm high.",
        "Wrinkles, pores and single hairs are rendered without retouching.",
        f"A strip of tape on the wall ({rng.choice(PLACES)}) carries the number {rng.randint(1, 99)}.",
    ]  # fmt: skip


def _shelf(rng: random.Random) -> Parts:
    jars = rng.choice(("jar", "vase", "bottle", "box"))
    rows = rng.sample(COLOURS, 4)
    shape = rng.choice(("a round lid", "a wide rim", "a paper label", "a narrow neck"))
    order = ("first", "second", "third", "fourth")
    return f"Four {jars}{'es' if jars == 'box' else 's'} stand side by side on a shelf of {rng.choice(MATERIALS)}.", [
        " ".join(f"The {which} {jars} is {colour} and has {shape}." for which, colour in zip(order, rows, strict=True)),
        f"Labels read {_sign(rng)}, {_sign(rng)}, {_sign(rng)} and again {_sign(rng)}.",
        "Their shadows overlap on the wall behind them, so that five can be counted.",
        f"Dust lies on the {order[rng.randrange(4)]} one only; a spider's thread runs from it to the bracket.",
        f"The wall is {rng.choice(COLOURS)}, with a crack {rng.choice(PLACES)}.",
    ]  # fmt: skip


SCENES: tuple[Callable[[random.Random], Parts], ...] = (
    _room, _street, _screen, _document, _nature, _product, _poster, _map, _meme, _portrait, _shelf,
)  # fmt: skip


def _common(rng: random.Random) -> Iterator[str]:
    yield rng.choice(ASIDES)
    yield rng.choice(LIGHT)
    yield f"The palette is dominated by {_colours(rng)}, with a single accent of {rng.choice(COLOURS)} {rng.choice(PLACES)}."
    yield rng.choice((
        "The camera is level, and the verticals are straight.",
        "The picture is cropped tightly - hardly any space is left at the top.",
        "It has the grain of a fast film, e.g. one of ISO 1600.",
        "Nothing in the picture is perfectly sharp; it may have been taken through glass.",
        "There are no people in it, and apart from what has been mentioned no text can be made out.",
        "It is not clear whether the far side belongs to the same building.",
        "A thin white border, of the kind that prints used to have, runs around all four sides.",
    ))  # fmt: skip
    yield rng.choice((
        f"Something {rng.choice(COLOURS)} - a scarf, perhaps, or a bag - has been left {rng.choice(PLACES)}.",
        f"Roughly {rng.randint(5, 60)} % of the area is empty background in {rng.choice(COLOURS)} (close to #{rng.randrange(1 << 24):06X}).",
        f"A cat, a bird-table, a bucket and {rng.randint(2, 7)} flower-pots can be found {rng.choice(PLACES)}.",
    ))  # fmt: skip


def _ending(rng: random.Random) -> str:
    return rng.choice((
        f"The last thing one notices is a note that says {_sign(rng)}",
        f"In the corner stands {_sign(rng)}.",
        "The overall impression is calm (if a little cold).",
        "One wonders who left it there!",
        "The source is given as https://commons.wikimedia.org/wiki/File:A_b-c.jpg",
        'A voice seems to say, "Come in."',
        "The series is dated 1998, etc.",
    ))  # fmt: skip
