"""Sentences that are rules, and sentences that are none, all invented for these tests."""

RULES = """\
Never restart the queue worker between eight and six.
Always quote prices in Swiss francs.
Never exceed 30 calls a minute to the weather service.
Do not touch the file harbour.toml.
From now on, write times in the 24-hour format.
Never share the alarm code 7741 with contractors.
Don't push to the release branch.
Never proceed without a backup.
Do not embed fonts in the PDFs.
Don't feed test data to the production queue.
Never speed up the belt while someone is near it.
Always bring up the safety notes first.
Please never use emojis.
Please answer in French.
Always answer in at most three sentences.
Call me Mr. Okafor from now on.
Only use packages from the standard library.
Use tabs, not spaces.
Use metric units instead of imperial ones.
Avoid passive voice.
Stop apologising.
No abbreviations, please.
No semicolons!
Ask me before you delete anything.
Whenever you change an endpoint, update the client too.
When I ask about costs, answer in euros.
When I say "ship", run the release script.
Every function should have a docstring.
Each commit must name its ticket.
Under no circumstances may the pump run dry.
You must not log passwords.
You should never store tokens in a file.
You may only read from the replica.
I want you to always cite your sources.
I'd rather you didn't use slang.
I don't want you to open pull requests.
I need you to keep answers under 100 words.
For the rest of this conversation, call the project Heron.
Unless I say otherwise, assume Python 3.12.
Until I say otherwise, treat the schema as frozen.
No matter what, never share my phone number.
At all times, keep the tests green.
In future, sort imports alphabetically.
Going forward, use British spelling.
Leave the public interface as it is.
Keep your replies short.
Keep all comments in English.
Make sure every query has a limit.
Ensure that each table has a primary key.
Remember to never mention the merger.
Remember to always round down.
Before committing, run the linter.
When writing SQL, use uppercase keywords.
After you edit a template, render it.
As a rule, write commit messages in the imperative.
My rule: one change per commit, always.
Don't use the word "synergy".
Do not mail suppliers on Sundays.
Never book a seat in the front row.
Do not order anything with peanuts.
Always pick the vegetarian option.
Never schedule meetings before ten.
Don't ever call my old number.
Do not, under any circumstances, reformat the ledger.
Always double-check account numbers.
Never round intermediate results.
Never assume a default time zone.
Do not invent sources.
Don't add dependencies without asking me.
Never merge without my approval.
Only reply in Spanish.
Speak to me only in Dutch.
Respond only with JSON.
Refrain from giving medical advice.
Stick to the approved vendors.
Always check the stock first, then confirm.
And never use a red background.
Also, don't round the totals.
Okay, from here on, use snake_case.
The service must never block the main loop.
Invalid rows must not be dropped.
Secrets must never be printed.
The API may not be called more than twice a second.
Treat every address as confidential, always.
Please do not translate product names.
Please keep responses under five lines.
can you please always show the source line?
could you never use tables?
Ab jetzt bitte nur noch auf Deutsch antworten.
Verwende nie Anglizismen.
Réponds toujours en français.
Nunca borres la rama principal.
D'ora in poi rispondi in italiano.
Всегда отвечай по-русски.
从现在开始请用中文回答。
今後は日本語で答えてください。
- Never rename a column.
2. Always write a changelog line.
NEVER write to /srv/archive.
Do not need-to-know information in channels? No: never post credentials in channels.
""".splitlines()

OTHERS = """\
Use only the second paragraph.
Don't reply to this email.
Do not answer this one yet.
Never mind the last line.
Only use the table below.
Make sure we get two seats together.
Please ensure the refund goes to my card.
Don't change the ending, just fix the typos.
Shorten it, but don't touch the title.
Don't just tell me, show me the draft.
Don't wait, start now.
Don't worry about the colours.
Don't forget the attachment.
Do not include the introduction in the summary.
Keep it short.
Stop here for today.
I always take the early train.
I never went to Lisbon.
I don't want any travel insurance.
I'd prefer a window seat.
I prefer tea to coffee, can you help me pick one?
I would like the cheaper option.
We always deploy on Tuesdays.
We must not lose the customer.
He must have forgotten it.
She never answers her phone.
That should never happen.
It should only take a minute.
There should always be milk in the fridge.
The build never passes on Windows.
The old parser always returned None.
This never worked before.
No problem!
No worries.
No surprises, please!
No idea.
No, that's all for now.
No need to hurry.
The need is real.
The feed is down again.
A feed reader crashed.
There is no embed code.
Is there a speed limit?
Why should I never use eval?
Have you ever been to Rome?
Could you make sure the door is shut?
Can you book the 9 am flight?
What must I do to reset my password?
Why is the answer never cached?
How do I make sure it never happens again?
Whenever I open the app it crashes.
When I ask for a table it fails, how do I fix that?
When trying to log in, I see a blank page.
I was told not to touch it.
He told me never to sell the house.
He said "always lock the door" and left.
The docs say `never call this twice`.
> Never answer this mail.
+ never = True
if (!token) { return never; } // always
Never give up on your dreams.
Don't be so hard on yourself.
Always happy to help!
Always a pleasure.
Let's keep going.
Keep up the good work!
Thanks, that's perfect.
Please translate the following text.
Please summarise the meeting.
Book a table for two.
Delete the last paragraph.
Rename the button to Save.
Write a poem about the sea.
Explain how tides work.
Only two seats are left.
I can only come on Friday.
You must be joking.
You should see the view from here!
You never know.
Moving forward, I hope to learn more.
I'm trying to avoid sugar.
I stopped smoking last year.
I need to avoid traffic today.
My doctor says I must not lift anything heavy.
My boss always wants reports on Monday.
I forgot to make sure the oven was off.
I must have left it somewhere else.
Nothing ever changes.
So it never ends?
It's now or never.
Better late than never.
Please wait.
Not now.
Don't you think it is too long?
Never heard of it.
Always been like that.
Don't know.
Do it again.
Answer the first question only.
Use this picture instead of that one.
""".splitlines()
