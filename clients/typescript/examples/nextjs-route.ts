/** Route handlers of Next.js: save as app/api/memory/route.ts, and import from "ricordo-client". */

import { Ricordo, RicordoError } from "../src/index.js";

const options: { url?: string; key?: string } = {};
if (process.env["RICORDO_URL"]) options.url = process.env["RICORDO_URL"];
if (process.env["RICORDO_API_KEY"]) options.key = process.env["RICORDO_API_KEY"];
const ricordo = new Ricordo(options);

/** Return the user whom your application has signed in. Replace it with your session. */
function userOf(request: Request): string {
  return request.headers.get("x-user") ?? "ada";
}

/** Show the user what waits for a decision. */
export async function GET(request: Request): Promise<Response> {
  const proposals = await ricordo.user(userOf(request)).proposals({ status: "open" });
  return Response.json(proposals.map(({ id, label, diff, reasoning }) => ({ id, label, diff, reasoning })));
}

/** Approve or reject a proposal: {"id": "…", "approve": true}. */
export async function POST(request: Request): Promise<Response> {
  const { id, approve } = (await request.json()) as { id: string; approve: boolean };
  const memory = ricordo.user(userOf(request));
  try {
    return Response.json(approve ? await memory.approve([id]) : await memory.reject([id]));
  } catch (error) {
    if (!(error instanceof RicordoError)) throw error;
    return Response.json({ detail: error.message }, { status: error.status });
  }
}
