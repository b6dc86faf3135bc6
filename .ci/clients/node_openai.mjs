// The openai SDK for Node. Usage: node_openai.mjs plain|stream|concurrent|errors|tools
import OpenAI from "openai";

const client = new OpenAI();
const say = (text) => [{ role: "system", content: "be brief" }, { role: "user", content: text }];
const ask = (text, more = {}) => client.chat.completions.create({ model: "m-1", messages: say(text), ...more });
const doings = {
  async plain(word = "one") {
    for (const text of [word, "two", "three"]) console.log(JSON.stringify(await ask(text)));
  },
  async stream() {
    for await (const chunk of await ask("é two", { stream: true })) console.log(JSON.stringify(chunk));
  },
  async concurrent() {
    const one = async (number) => {
      const text = (await ask(`wait ${number}`)).choices[0].message.content;
      console.log(number, text);
      return text;
    };
    const answers = await Promise.all([...Array(20).keys()].map(one));
    if (!answers.every((answer, number) => answer.includes(`wait ${number}`))) throw new Error("another's answer");
  },
  async errors() {
    for (let i = 0; i < 2; i++) console.log((await ask("fail with 429")).choices[0].message.content);
    await ask("fail with 400").catch((error) => console.log(error.status, error.error));
  },
  async tools() {
    const tools = [{ type: "function", function: { name: "add", parameters: { type: "object", properties: {} } } }];
    const message = (await ask("what is 2 + 3?", { tools })).choices[0].message;
    const call = message.tool_calls[0];
    const { a, b } = JSON.parse(call.function.arguments);
    const messages = [...say("what is 2 + 3?"), message, { role: "tool", tool_call_id: call.id, content: String(a + b) }];
    console.log((await client.chat.completions.create({ model: "m-1", messages, tools })).choices[0].message.content);
  },
};
await doings[process.argv[2]](...process.argv.slice(3));
