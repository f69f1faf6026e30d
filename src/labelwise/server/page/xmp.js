// Sidecars with the labels as keywords, as photo managers read them; those of several images come in a ZIP file.

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };

/** The text of an .xmp file. */
export function asXmp(labels) {
  const keywords = labels.map((label) => `\n     <rdf:li>${label.replace(/[&<>]/g, (sign) => ENTITIES[sign])}</rdf:li>`);
  return `<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="labelwise page">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/">
   <dc:subject>
    <rdf:Bag>${keywords.join("")}
    </rdf:Bag>
   </dc:subject>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
`;
}

/** `a.jpg` -> `a.xmp`, the name that programs look for; `a.jpg.xmp` if another image has taken it. */
export function sidecarNames(images) {
  const taken = new Set();
  return images.map((image) => {
    const stem = image.replace(/\.[^.]+$/, "");
    let name = `${stem}.xmp`;
    for (let copy = 1; taken.has(name); copy++) name = copy > 1 ? `${image}-${copy}.xmp` : `${image}.xmp`;
    taken.add(name);
    return name;
  });
}

/** The bytes of a ZIP file, not compressed, of [[name, text], …]. */
export function zipped(files) {
  const encoder = new TextEncoder(), content = [], directory = [];
  let offset = 0;
  for (const [name, text] of files) {
    const path = encoder.encode(name), data = encoder.encode(text);
    const about = [ // version 2.0, UTF-8 names, stored, 1980-01-01 00:00, checksum, sizes, lengths of name and extras
      [2, 20], [2, 0x0800], [2, 0], [2, 0], [2, 0x21], [4, crc32(data)], [4, data.length], [4, data.length],
      [2, path.length], [2, 0]];
    directory.push(packed([4, 0x02014b50], [2, 20], ...about, [2, 0], [2, 0], [2, 0], [4, 0], [4, offset]), path);
    content.push(packed([4, 0x04034b50], ...about), path, data);
    offset += 30 + path.length + data.length;
  }
  const size = directory.reduce((sum, part) => sum + part.byteLength, 0), many = files.length;
  const end = packed([4, 0x06054b50], [2, 0], [2, 0], [2, many], [2, many], [4, size], [4, offset], [2, 0]);
  return new Blob([...content, ...directory, end]);
}

/** Numbers of 2 or 4 bytes, the lowest byte first. */
function packed(...fields) {
  const view = new DataView(new ArrayBuffer(fields.reduce((sum, [size]) => sum + size, 0)));
  let place = 0;
  for (const [size, value] of fields) {
    if (size === 2) view.setUint16(place, value, true);
    else view.setUint32(place, value, true);
    place += size;
  }
  return view;
}

function crc32(data) {
  let crc = ~0;
  for (const byte of data) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = crc >>> 1 ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc >>> 0;
}
