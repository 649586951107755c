"""Ask a running service through OpenAI's own client: OPENAI_BASE_URL and OPENAI_API_KEY say where and who."""

from openai import OpenAI

client = OpenAI()
model = client.models.list().data[0].id
answer = client.completions.create(model=model, prompt="SYS: Hello", max_tokens=24)
print("SYS: Hello" + answer.choices[0].text)
print(answer.usage)
for piece in client.completions.create(model=model, prompt="USR: My order", max_tokens=24, stream=True):
    print(piece.choices[0].text, end="", flush=True)
print()
