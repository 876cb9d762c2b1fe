// Shows a PDF with PDF.js: in the page of the server, and in the document that other programs embed.
const MOST = 60; // pages

export async function show(pdfjs, data, place) {
  // No code of a PDF runs, and nothing of it is loaded from elsewhere: no scripts, forms or links are made, only pictures.
  const loading = pdfjs.getDocument({ data, isEvalSupported: false, useWasm: false, enableXfa: false, stopAtErrors: false });
  const file = await loading.promise;
  place.replaceChildren();
  for (let number = 1; number <= Math.min(file.numPages, MOST); number += 1) {
    const page = await file.getPage(number);
    const width = page.getViewport({ scale: 1 }).width;
    const scale = (Math.min(place.clientWidth || width, 1000) / width) * Math.min(window.devicePixelRatio || 1, 2);
    const viewport = page.getViewport({ scale: Math.min(scale, 4) });
    const canvas = document.createElement("canvas");
    canvas.width = Math.floor(viewport.width);
    canvas.height = Math.floor(viewport.height);
    canvas.className = "pdf";
    canvas.setAttribute("role", "img");
    const text = await page.getTextContent();
    canvas.setAttribute("aria-label", `Page ${number}: ${text.items.map((item) => item.str).join(" ")}`);
    place.append(canvas);
    await page.render({ canvas, canvasContext: canvas.getContext("2d"), viewport }).promise;
  }
  if (file.numPages > MOST) tell(place, `These are ${MOST} of ${file.numPages} pages. The file has all of them.`);
  place.dataset.pages = String(file.numPages);
}

export function tell(place, words) {
  const line = document.createElement("p");
  line.textContent = words;
  place.append(line);
}

const place = document.querySelector("[data-pdf]");
if (place) {
  try {
    const pdfjs = await import(`${place.dataset.pdfjs}.min.mjs`);
    pdfjs.GlobalWorkerOptions.workerSrc = `${place.dataset.pdfjs}.worker.min.mjs`;
    const answer = await fetch(place.dataset.pdf);
    if (!answer.ok) throw new Error(`The server answered ${answer.status}.`);
    await show(pdfjs, new Uint8Array(await answer.arrayBuffer()), place);
  } catch (error) {
    place.replaceChildren();
    tell(place, `This cannot be shown (${error.message}). Save the file to see it.`);
  }
}
