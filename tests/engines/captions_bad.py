"""Answers that are no captions, as vision-language models give them: (fault, why the model stopped, text)."""

from __future__ import annotations

from smalti.reasons import CaptionFault as F

KITCHEN = (
    "A bright, narrow kitchen is photographed from the doorway at eye level. White shaker cabinets run along both walls, "
    "topped with pale grey quartz, and a farmhouse sink sits below a window with four panes. A copper kettle stands on the "
    "gas hob at the left, next to a wooden board with half a loaf of bread. Two bar stools with black metal legs are pushed "
    "under the counter at the right. Morning light falls across the oak floor and leaves long, soft shadows, while a small "
    "terracotta pot of basil on the sill adds the only strong green in the picture. The far wall is covered with glossy "
    "square tiles, and a round clock above the door shows ten past eight."
)
DOG = (
    "A brown and white spaniel runs along a wet beach towards the camera, its ears flying and its mouth open. Drops of water "
    "hang in the air around its paws. Behind it the sea is slate grey with low foam, and a headland with a white lighthouse "
    "closes the left of the horizon. The sky is overcast and evenly lit, so the dog's wet coat has hardly any highlights."
)
SHORT = "A brown dog runs along a wet beach under a grey sky, with a lighthouse far behind it."

BAD: tuple[tuple[F, str, str], ...] = (
    # empty
    (F.EMPTY, "stop", ""),
    (F.EMPTY, "stop", " \n\t\u200b "),
    (F.EMPTY, "stop", '""'),
    (F.EMPTY, "stop", "“…”"),
    (F.EMPTY, "length", "!" * 900),
    (F.EMPTY, "stop", "---\n***"),
    # leaked tokens
    (F.LEAKED_TOKENS, "stop", f"{KITCHEN}<|im_end|>"),
    (F.LEAKED_TOKENS, "length", f"{DOG}<|im_end|>\n<|im_start|>assistant\n{DOG}"),
    (F.LEAKED_TOKENS, "stop", f"<|im_start|>assistant\n{KITCHEN}"),
    (F.LEAKED_TOKENS, "stop", f"<think>The user wants a caption. There is a dog on a beach.</think>\n\n{DOG}"),
    (F.LEAKED_TOKENS, "stop", f"There is a dog, a beach and a lighthouse; I mention all three.\n</think>\n\n{DOG}"),
    (F.LEAKED_TOKENS, "stop", f"[INST] <image>\nDescribe the image. [/INST] {KITCHEN}</s>"),
    (F.LEAKED_TOKENS, "stop", f"<image> {KITCHEN}"),
    (F.LEAKED_TOKENS, "stop", f"{KITCHEN}</s>"),
    (F.LEAKED_TOKENS, "stop", f"<s>{DOG}"),
    (F.LEAKED_TOKENS, "stop", f"USER: Describe this picture in detail. ASSISTANT: {KITCHEN}"),
    (F.LEAKED_TOKENS, "stop", f"assistant: {KITCHEN}"),
    (F.LEAKED_TOKENS, "stop", f"user\nDescribe the picture.\nassistant\n{KITCHEN}"),
    (F.LEAKED_TOKENS, "stop", f"{DOG}assistant\n\n{DOG}"),
    (F.LEAKED_TOKENS, "stop", f"<|vision_start|><|image_pad|><|vision_end|>{KITCHEN}"),
    (F.LEAKED_TOKENS, "stop", KITCHEN.replace(" ", "▁")),
    (F.LEAKED_TOKENS, "stop", DOG.replace(" ", "Ġ")),
    (F.LEAKED_TOKENS, "stop", KITCHEN.replace("copper", "co\ufffd\ufffder")),
    (F.LEAKED_TOKENS, "stop", f"{KITCHEN} A tea towel on the rail reads “Bon App\ufffdtit”."),
    (F.LEAKED_TOKENS, "stop", f'{{"caption": "{KITCHEN}"}}'),
    (F.LEAKED_TOKENS, "stop", f'{{"type": "photo", "objects": ["sink", "kettle"], "caption": "{KITCHEN}"}}'),
    (F.LEAKED_TOKENS, "stop", f'{KITCHEN}"}}]'),
    (F.LEAKED_TOKENS, "stop", f'<tool_call>\n{{"name": "describe", "arguments": {{"text": "{DOG}"}}}}\n</tool_call>'),
    (F.LEAKED_TOKENS, "stop", DOG.replace(". ", ".\\n\\n")),
    (F.LEAKED_TOKENS, "stop", f"The <ref>spaniel</ref><box>(112,340),(560,811)</box> runs. {DOG}"),
    (F.LEAKED_TOKENS, "stop", f"Okay, let me look at the picture first. {DOG}"),
    (F.LEAKED_TOKENS, "stop", f"{DOG} Let me know if you would like a shorter version!"),
    (F.LEAKED_TOKENS, "stop", f"{DOG}<|eot_id|>"),
    (F.LEAKED_TOKENS, "stop", f"<IMG_CONTEXT><IMG_CONTEXT>{KITCHEN}"),
    (F.LEAKED_TOKENS, "stop", f"<MORE_DETAILED_CAPTION>{KITCHEN}"),
    (F.LEAKED_TOKENS, "stop", f"The dog<loc_52><loc_332><loc_932><loc_774> runs. {DOG}"),
    (F.LEAKED_TOKENS, "stop", f"{DOG}<｜end▁of▁sentence｜>"),
    (F.LEAKED_TOKENS, "stop", f"{DOG} ###Human: What breed is it? ###Assistant: A spaniel."),
    (F.LEAKED_TOKENS, "stop", f"<answer>{KITCHEN}</answer>"),
    (F.LEAKED_TOKENS, "stop", f'[{{"bbox_2d": [10, 20, 300, 400], "label": "{SHORT}"}}]'),
    (F.LEAKED_TOKENS, "stop", f'caption": "{KITCHEN}'),
    (F.LEAKED_TOKENS, "stop", DOG.replace(". ", ".<0x0A>")),
    (F.LEAKED_TOKENS, "stop", f"{DOG} If you have any other questions, feel free to ask!"),
    (F.LEAKED_TOKENS, "stop", f"So the user wants me to write one paragraph. {DOG}"),
    (F.LEAKED_TOKENS, "stop", DOG.replace("'", "â€™")),
    # refusals
    (F.REFUSAL, "stop", "I'm sorry, but I can't help with that."),
    (F.REFUSAL, "stop", "I’m sorry, but I can’t assist with identifying people in pictures."),
    (F.REFUSAL, "stop", f"As an AI language model, I do not see pictures as people do. {DOG}"),
    (F.REFUSAL, "stop", f"{DOG} I cannot identify the breed's owner or the person who took the photograph."),
    (F.REFUSAL, "stop", f"{SHORT} However, I am unable to describe the second person. {DOG}"),
    (
        F.REFUSAL,
        "stop",
        "The image shows a man in a dark suit at a lectern with two flags behind him and a crowd that is out of focus. It is "
        "not possible to identify the man from the image alone. The light is cold and comes from above.",
    ),
    (F.REFUSAL, "stop", "Sorry, I can't describe this picture because it may show explicit content."),
    (F.REFUSAL, "stop", f"{DOG} Unfortunately, I don't have enough information to say where this is."),
    (
        F.REFUSAL,
        "stop",
        "No image was provided. Please upload the image and I will describe it in one paragraph for you.",
    ),
    (F.REFUSAL, "stop", f"{SHORT} It would be inappropriate to describe the people in the background any further."),
    (
        F.REFUSAL,
        "stop",
        "Unable to process the image. The picture may be damaged or of a format that is not supported.",
    ),
    (
        F.REFUSAL,
        "stop",
        "I won't describe this picture, as it appears to violate our content policy on graphic scenes.",
    ),
    (F.REFUSAL, "stop", f"{DOG} Note that I cannot verify the identity of the person in the distance."),
    (F.REFUSAL, "stop", f"The sign reads “OPEN”. I’m sorry, but I can’t continue with this description. {DOG}"),
    (F.REFUSAL, "stop", "I apologize, but the image did not load on my side."),
    (F.REFUSAL, "stop", "I must decline to describe this picture, since it shows a real person in a private moment."),
    (F.REFUSAL, "stop", f"Identifying people from their faces is not something I can do. {DOG}"),
    (F.REFUSAL, "stop", "There is no image attached to your message. Could you please upload it again?"),
    (F.REFUSAL, "stop", f"The poster says “GO” It is not possible to determine who drew it. {DOG}"),
    (F.REFUSAL, "stop", "Cannot describe: explicit content."),
    # markup
    (F.MARKUP, "stop", f"# A kitchen in the morning\n\n{KITCHEN}"),
    (F.MARKUP, "stop", f"### Description\n{DOG}"),
    (F.MARKUP, "stop", f"{SHORT}\n\n- A brown dog\n- A wet beach\n- A white lighthouse\n\n{DOG}"),
    (F.MARKUP, "stop", f"{SHORT}\n* **Dog**: brown and white\n* **Sky**: overcast and grey\n{DOG}"),
    (F.MARKUP, "stop", f"1. **Foreground**: a dog that runs.\n2. **Background**: the sea.\n{DOG}"),
    (F.MARKUP, "stop", f"{SHORT} The main elements are: 1. A dog on the sand. 2. A lighthouse. 3. A grey sea. {DOG}"),
    (F.MARKUP, "stop", DOG.replace("brown and white spaniel", "**brown and white spaniel**")),
    (F.MARKUP, "stop", DOG.replace("wet beach", "*wet* beach")),
    (F.MARKUP, "stop", f"{SHORT}\n\n| object | colour |\n|---|---|\n| dog | brown |\n\n{DOG}"),
    (F.MARKUP, "stop", f"```\n{KITCHEN}\n```"),
    (F.MARKUP, "stop", f"<p>{KITCHEN}</p>"),
    (F.MARKUP, "stop", f"{KITCHEN}<br/>{DOG}"),
    (F.MARKUP, "stop", f"Caption: {KITCHEN}"),
    (F.MARKUP, "stop", f"Image type: photograph\n{KITCHEN}"),
    (F.MARKUP, "stop", f"**Description:** {DOG}"),
    (F.MARKUP, "stop", f"Image type: photograph. Subject: a dog. Setting: a beach. Lighting: overcast. {DOG}"),
    (F.MARKUP, "stop", f"Sure! Here is a detailed caption of the picture:\n\n{KITCHEN}"),
    (F.MARKUP, "stop", f"Here's a description of the image: {KITCHEN}"),
    (F.MARKUP, "stop", f"{DOG}\n\nVisible text: none"),
    (F.MARKUP, "stop", f"{SHORT} The sign reads **“STOP”** in white. {DOG}"),
    (F.MARKUP, "stop", f"{SHORT}\n• A dog\n• A beach\n{DOG}"),
    (F.MARKUP, "stop", f"✅ {SHORT}\n✅ {DOG}"),
    (F.MARKUP, "stop", f"Foreground: {SHORT}\nMidground: {SHORT}\nSky: {DOG}"),
    (F.MARKUP, "stop", f"{SHORT} The scene has: 1) a dog, 2) a beach, 3) a lighthouse. {DOG}"),
    (F.MARKUP, "stop", f"{DOG}\n\n---\n\n{KITCHEN}"),
    (F.MARKUP, "stop", f"{DOG}\n\n#dog #beach #grey"),
    (F.MARKUP, "stop", f"Certainly! {DOG}"),
    (F.MARKUP, "stop", f"This is a detailed description of the image: {DOG}"),
    (F.MARKUP, "stop", f"{DOG} _The Great Wave_ hangs behind it. [Source](https://example.org)"),
    (F.MARKUP, "stop", f"Fish &amp; chips are sold behind it. {DOG}"),
    (F.MARKUP, "stop", f"{SHORT}\n1. the dog runs\n2. the sea is grey\n{DOG}"),
    (F.MARKUP, "stop", f"Sky: overcast and grey.\nSand: wet and brown.\n{DOG}"),
    (F.MARKUP, "stop", f"{DOG} Lighting: soft and even. Mood: calm, a little cold."),
    # loops
    (F.LOOPING, "length", KITCHEN + " The tiles are glossy and square." * 60),
    (F.LOOPING, "length", f"{KITCHEN} On the shelf are{' a jar, a bowl, a plate,' * 80}"),
    (F.LOOPING, "length", f"{DOG} Behind it are{' a house, a tree, another house, another tree,' * 40} a house"),
    (F.LOOPING, "stop", f"{DOG} {DOG}"),
    (F.LOOPING, "stop", f"{DOG} {SHORT} {SHORT} {SHORT}"),
    (F.LOOPING, "length", DOG + " and the sea and the sky" * 50),
    (F.LOOPING, "length", f"{DOG} The sign at the left reads “{'NO ENTRY ' * 120}"),
    (F.LOOPING, "stop", f"{DOG} The sign at the left reads “{'NO ENTRY ' * 120}”."),
    (
        F.LOOPING,
        "length",
        "A long brick building. "
        + " ".join(f"The {n}th window from the left has a white frame." for n in range(4, 80)),
    ),
    (F.LOOPING, "length", f"{DOG} The numbers on the ruler are {', '.join(map(str, range(1, 300)))}"),
    (F.LOOPING, "length", DOG + " wet" * 200),
    (F.LOOPING, "length", f"{DOG} The licence plate reads {'0' * 500}"),
    (
        F.LOOPING,
        "length",
        DOG + " The picture is calm, and the dog is happy. The light is soft. The mood is joyful." * 15,
    ),
    (
        F.LOOPING,
        "length",
        "A crowd fills a square. "
        + " ".join(
            f"There is a {('man', 'woman')[n % 2]} in a {('red', 'blue', 'white')[n * n % 3]} shirt {('at the left', 'in the middle')[n // 3 % 2]}."
            for n in range(60)
        ),
    ),
    (F.LOOPING, "stop", f"{DOG} There is a chair, a chair, a chair, a chair, a chair, and a chair."),
    (F.LOOPING, "stop", f"{DOG} Far off there are gulls in the sky in the sky in the sky in the sky."),
    (F.LOOPING, "length", DOG + "\nThe sky is grey." * 60),
    (F.LOOPING, "length", f"{DOG} The keyboard has the keys “Q”, “W”, “E”{', “R”, “T”, “Y”' * 40}"),
    (F.LOOPING, "length", DOG + " ." * 200),
    (F.LOOPING, "length", f"{DOG} {''.join(f'Next to it is a {c} book. ' for c in ('red', 'blue', 'green') * 30)}"),
    (F.LOOPING, "length", DOG + "的" * 200),
    (
        F.LOOPING,
        "stop",
        " ".join(
            f"{each}. The sky above all this remains grey and calm."
            for each in DOG.split(". ") + KITCHEN.split(". ")[:2]
        ),
    ),
    # cut off
    (F.CUT_OFF, "length", KITCHEN),
    (F.CUT_OFF, "length", KITCHEN[:-60]),
    (F.CUT_OFF, "stop", f"{KITCHEN} To the left of the door there is a"),
    (F.CUT_OFF, "stop", f"{KITCHEN} On the counter stand jars of flour, sugar,"),
    (F.CUT_OFF, "stop", f"{KITCHEN} The clock is made of brass and"),
    (F.CUT_OFF, "stop", f"{KITCHEN} The following can be seen on the shelf:"),
    (F.CUT_OFF, "stop", f'{KITCHEN} A poster beside it reads "Keep calm and'),
    (F.CUT_OFF, "stop", f"{KITCHEN} A poster beside it reads “Keep calm. Carry on."),
    (F.CUT_OFF, "stop", f"{KITCHEN} The window is large, e.g."),
    (F.CUT_OFF, "stop", f"{KITCHEN} The tiles measure approx."),
    (F.CUT_OFF, "stop", f"{KITCHEN} In the background we can see..."),
    (F.CUT_OFF, "stop", f"{KITCHEN} The floor is made of oak (probably"),
    (F.CUT_OFF, "stop", f"{KITCHEN} The overall atmos"),
    (F.CUT_OFF, "stop", f"{KITCHEN} The sign reads “OPEN”,"),
    (F.CUT_OFF, "stop", f"{KITCHEN} There are three things on it: a cup, a plate and a."),
    (F.CUT_OFF, "stop", f"{KITCHEN} The calendar's title, “March”, is in the"),
    # another language
    (
        F.WRONG_LANGUAGE,
        "stop",
        "这张照片展示了一间明亮的厨房。白色的橱柜沿着两面墙排列，台面是浅灰色的石英石。窗台上放着一盆罗勒，木地板上洒满了清晨的阳光。",
    ),
    (F.WRONG_LANGUAGE, "stop", f"{DOG} 背景中有一座白色的灯塔，天空阴沉，海面上有低矮的浪花。整体氛围宁静而自然。"),
    (
        F.WRONG_LANGUAGE,
        "stop",
        "На фотографии изображена коричнево-белая собака, которая бежит по мокрому пляжу. На заднем плане видны серое море и "
        "белый маяк. Небо пасмурное, свет мягкий и ровный.",
    ),
    (
        F.WRONG_LANGUAGE,
        "stop",
        "L'image montre une cuisine lumineuse et étroite, photographiée depuis la porte. Des placards blancs longent les deux "
        "murs et une bouilloire en cuivre est posée sur la cuisinière. La lumière du matin tombe sur le parquet en chêne.",
    ),
    (
        F.WRONG_LANGUAGE,
        "stop",
        "Das Bild zeigt eine helle, schmale Küche, die von der Tür aus aufgenommen wurde. An beiden Wänden stehen weiße "
        "Schränke, und auf dem Herd steht ein Kessel aus Kupfer. Das Licht fällt auf den Boden aus Eiche.",
    ),
    (
        F.WRONG_LANGUAGE,
        "stop",
        "La imagen muestra una cocina luminosa y estrecha, fotografiada desde la puerta. Los armarios blancos recorren las dos "
        "paredes y sobre la encimera hay una tetera de cobre. La luz de la mañana cae sobre el suelo de madera.",
    ),
    (
        F.WRONG_LANGUAGE,
        "stop",
        "تُظهر الصورة كلبًا بنيًا وأبيض يركض على شاطئ مبتل نحو الكاميرا. في الخلفية بحر رمادي ومنارة بيضاء، والسماء ملبدة بالغيوم "
        "والضوء ناعم ومتساوٍ.",
    ),
    (
        F.WRONG_LANGUAGE,
        "stop",
        "茶色と白のスパニエルが濡れた砂浜をカメラに向かって走っています。背景には灰色の海と白い灯台が見えます。空は曇っています。",
    ),
    (
        F.WRONG_LANGUAGE,
        "stop",
        f"{DOG} Im Hintergrund steht ein weißer Leuchtturm auf einer Landzunge, und der Himmel ist mit grauen Wolken bedeckt, die "
        "das Licht weich und gleichmäßig machen.",
    ),
    (F.WRONG_LANGUAGE, "stop", f"{DOG} На заднем плане виден белый маяк, а небо затянуто серыми облаками."),
    (
        F.WRONG_LANGUAGE,
        "stop",
        "Het beeld toont een smalle en lichte keuken die vanuit de deur is gefotografeerd. Aan de muren hangen witte kasten en op "
        "het fornuis staat een koperen ketel. Het licht van de ochtend valt op de vloer van eikenhout.",
    ),
    (
        F.WRONG_LANGUAGE,
        "stop",
        "Zdjęcie przedstawia jasną i wąską kuchnię, sfotografowaną od strony drzwi. Na kuchence stoi miedziany czajnik, a na "
        "parapecie rośnie bazylia w małej doniczce. Poranne światło pada na dębową podłogę.",
    ),
    (F.WRONG_LANGUAGE, "stop", f"{DOG} L'ambiance générale est calme et chaleureuse, avec une lumière douce."),
    (F.WRONG_LANGUAGE, "stop", f"{DOG} 整体画面给人一种温馨的感觉。"),
    (
        F.WRONG_LANGUAGE,
        "stop",
        f"{SHORT} Sullo sfondo si vedono delle montagne coperte di neve e un cielo azzurro senza nuvole. {DOG}",
    ),
    (
        F.WRONG_LANGUAGE,
        "stop",
        'Das Schild zeigt den Text "Open 24 hours" und "No smoking" in roter Schrift, und links daneben steht ein Mann mit einem Hut.',
    ),
    (
        F.WRONG_LANGUAGE,
        "stop",
        "“Une femme assise sur un banc lit un journal tandis que des enfants jouent dans le parc derrière elle et que le soleil se "
        "couche sur la ville.”",
    ),
    (
        F.WRONG_LANGUAGE,
        "stop",
        "Kuvassa oranssi kissa nukkuu harmaalla sohvalla. Kissan vieressä on sininen tyyny ja taustalla näkyy ikkuna, jossa on "
        "valkoiset verhot. Auringonvalo tulee huoneeseen pehmeästi ja valaisee lattian.",
    ),
    (
        F.WRONG_LANGUAGE,
        "stop",
        "Picha hii inaonyesha paka wa rangi ya chungwa akilala kwenye sofa ya kijivu. Kando ya paka kuna mto wa bluu na nyuma yake "
        "kuna dirisha lenye mapazia meupe yanayoruhusu mwanga wa jua kuingia katika chumba.",
    ),
    (
        F.WRONG_LANGUAGE,
        "stop",
        "이 사진은 바닷가에서 찍은 것으로, 하늘은 맑고 바다는 푸르며 사람들이 산책을 하고 있습니다.",
    ),
    # too short
    (F.TOO_SHORT, "stop", SHORT),
    (F.TOO_SHORT, "stop", "A kitchen."),
    (
        F.TOO_SHORT,
        "stop",
        "A close-up photograph of a red rose with drops of water on its petals, in front of a dark background.",
    ),
    (F.TOO_SHORT, "stop", "A poster with the words “Sorry, we are closed” in white on red."),
)
