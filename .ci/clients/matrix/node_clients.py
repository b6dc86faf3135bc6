"""Clients of Node.js, as a user writes them."""
import dataclasses

from client import ANTHROPIC, AWS, OPENAI, Client

SAY = 'const messages = [{ role: "user", content: "hi" }];'
VERCEL = ("reads no variable; the address is in the program",)

CLIENTS = [
    Client("openai (Node)", ["openai"], f"""
import OpenAI from "openai";
{SAY}
const client = new OpenAI();
console.log((await client.chat.completions.create({{ model: "m-1", messages }})).choices[0].message.content);
for await (const chunk of await client.chat.completions.create({{ model: "m-1", messages, stream: true }})) console.log(JSON.stringify(chunk));
console.log((await client.responses.create({{ model: "m-1", input: "hi" }})).output_text);
""", **OPENAI),
    Client("openai (Node): file upload", ["openai"], """
import OpenAI, { toFile } from "openai";
const client = new OpenAI();
console.log((await client.files.create({ file: await toFile(Buffer.from("some text"), "a.txt"), purpose: "assistants" })).id);
""", **OPENAI),
    Client("@anthropic-ai/sdk", ["@anthropic-ai/sdk"], f"""
import Anthropic from "@anthropic-ai/sdk";
{SAY}
const client = new Anthropic();
console.log((await client.messages.create({{ model: "m-1", max_tokens: 9, messages }})).content[0].text);
console.log((await client.messages.stream({{ model: "m-1", max_tokens: 9, messages }}).finalMessage()).content[0].text);
""", **ANTHROPIC),
    Client("@google/genai", ["@google/genai"], """
import { GoogleGenAI } from "@google/genai";
const client = new GoogleGenAI({ apiKey: process.env.GEMINI_API_KEY });
console.log((await client.models.generateContent({ model: "m-1", contents: "hi" })).text);
for await (const chunk of await client.models.generateContentStream({ model: "m-1", contents: "hi" })) console.log(chunk.text);
""", reads={"GOOGLE_GEMINI_BASE_URL": ""}, keys=("GEMINI_API_KEY",)),
    Client("@mistralai/mistralai", ["@mistralai/mistralai"], f"""
import {{ Mistral }} from "@mistralai/mistralai";
{SAY}
const client = new Mistral({{ apiKey: process.env.MISTRAL_API_KEY, serverURL: "FIXED" }});
console.log((await client.chat.complete({{ model: "m-1", messages }})).choices[0].message.content);
""", keys=("MISTRAL_API_KEY",), note=VERCEL[0]),
    Client("cohere-ai", ["cohere-ai"], f"""
import {{ CohereClientV2 }} from "cohere-ai";
{SAY}
const client = new CohereClientV2({{ environment: "FIXED" }});
console.log((await client.chat({{ model: "m-1", messages }})).message.content[0].text);
""", keys=("CO_API_KEY",), note=VERCEL[0]),
    Client("groq-sdk", ["groq-sdk"], f"""
import Groq from "groq-sdk";
{SAY}
const client = new Groq();
console.log((await client.chat.completions.create({{ model: "m-1", messages }})).choices[0].message.content);
for await (const chunk of await client.chat.completions.create({{ model: "m-1", messages, stream: true }})) console.log(JSON.stringify(chunk));
""", reads={"GROQ_BASE_URL": ""}, keys=("GROQ_API_KEY",)),
    Client("ollama (Node)", ["ollama"], f"""
import {{ Ollama }} from "ollama";
{SAY}
const client = new Ollama({{ host: "FIXED" }});
console.log((await client.chat({{ model: "m-1", messages }})).message.content);
for await (const part of await client.chat({{ model: "m-1", messages, stream: true }})) console.log(part.message.content);
""", note=VERCEL[0]),
    Client("ai, @ai-sdk/openai", ["@ai-sdk/openai", "ai"], """
import { openai } from "@ai-sdk/openai";
import { generateText, streamText } from "ai";
console.log((await generateText({ model: openai.chat("m-1"), prompt: "hi" })).text);
for await (const text of streamText({ model: openai.chat("m-1"), prompt: "hi" }).textStream) console.log(text);
console.log((await generateText({ model: openai("m-1"), prompt: "hi" })).text);
""", **OPENAI),
    Client("ai, @ai-sdk/anthropic", ["@ai-sdk/anthropic", "ai"], """
import { anthropic } from "@ai-sdk/anthropic";
import { generateText, streamText } from "ai";
console.log((await generateText({ model: anthropic("claude-sonnet-4-5"), prompt: "hi" })).text);
for await (const text of streamText({ model: anthropic("claude-sonnet-4-5"), prompt: "hi" }).textStream) console.log(text);
""", reads={"ANTHROPIC_BASE_URL": "/v1"}, keys=("ANTHROPIC_API_KEY",), note="asks for `/messages` below the variable's address"),
    Client("ai, @ai-sdk/anthropic, --upstream", ["@ai-sdk/anthropic", "ai"], """
import { anthropic } from "@ai-sdk/anthropic";
import { generateText } from "ai";
console.log((await generateText({ model: anthropic("claude-sonnet-4-5"), prompt: "hi", maxRetries: 0 })).text);
""", reads={"ANTHROPIC_BASE_URL": "/v1"}, upstreams=("anthropic",), keys=("ANTHROPIC_API_KEY",), note="no variable is set: annals' own address has no `/v1`"),
    Client("ai, @ai-sdk/google", ["@ai-sdk/google", "ai"], """
import { createGoogleGenerativeAI } from "@ai-sdk/google";
import { generateText } from "ai";
const google = createGoogleGenerativeAI({ baseURL: "FIXED/v1beta" });
console.log((await generateText({ model: google("m-1"), prompt: "hi" })).text);
""", keys=("GOOGLE_GENERATIVE_AI_API_KEY",), note=VERCEL[0]),
    Client("ai, @ai-sdk/groq", ["@ai-sdk/groq", "ai"], """
import { createGroq } from "@ai-sdk/groq";
import { generateText } from "ai";
const groq = createGroq({ baseURL: "FIXED/openai/v1" });
console.log((await generateText({ model: groq("m-1"), prompt: "hi" })).text);
""", keys=("GROQ_API_KEY",), note=VERCEL[0]),
    Client("ai, @ai-sdk/mistral", ["@ai-sdk/mistral", "ai"], """
import { createMistral } from "@ai-sdk/mistral";
import { generateText } from "ai";
const mistral = createMistral({ baseURL: "FIXED/v1" });
console.log((await generateText({ model: mistral("m-1"), prompt: "hi" })).text);
""", keys=("MISTRAL_API_KEY",), note=VERCEL[0]),
    Client("@langchain/openai", ["@langchain/openai", "@langchain/core"], """
import { ChatOpenAI } from "@langchain/openai";
const model = new ChatOpenAI({ model: "m-1" });
console.log((await model.invoke("hi")).content);
for await (const chunk of await model.stream("hi")) console.log(chunk.content);
""", **OPENAI),
    Client("@aws-sdk/client-bedrock-runtime", ["@aws-sdk/client-bedrock-runtime", "@smithy/node-http-handler"], """
import { BedrockRuntimeClient, ConverseCommand, ConverseStreamCommand } from "@aws-sdk/client-bedrock-runtime";
import { NodeHttpHandler } from "@smithy/node-http-handler";
const client = new BedrockRuntimeClient({ requestHandler: new NodeHttpHandler() });
const asked = { modelId: "m-1", messages: [{ role: "user", content: [{ text: "hi" }] }] };
console.log((await client.send(new ConverseCommand(asked))).output.message.content[0].text);
for await (const event of (await client.send(new ConverseStreamCommand(asked))).stream) console.log(JSON.stringify(event));
""", **AWS, note="its handler of HTTP/1.1: its own choice is HTTP/2, also without TLS"),
    Client("fetch and undici: bare", ["undici"], """
import { request } from "undici";
const url = process.env.OPENAI_BASE_URL + "/chat/completions";
const asked = (word) => ({
  method: "POST", headers: { "content-type": "application/json" },
  body: JSON.stringify({ model: "m-1", messages: [{ role: "user", content: word }] }),
});
console.log(await (await fetch(url, asked("fetch"))).text());
console.log(await (await request(url, asked("undici"))).body.text());
""", **OPENAI),
]
CLIENTS = [dataclasses.replace(client, runtime="node") for client in CLIENTS]
