// Encodes pictures away from the page's own thread.

const canvas = new OffscreenCanvas(1, 1);
const context = canvas.getContext("2d", { alpha: false });

onmessage = async ({ data: { bitmap, type, quality } }) => {
  try {
    if (canvas.width !== bitmap.width || canvas.height !== bitmap.height) {
      canvas.width = bitmap.width;
      canvas.height = bitmap.height;
    }
    context.drawImage(bitmap, 0, 0);
    bitmap.close();
    const blob = await canvas.convertToBlob({ type, quality });
    const bytes = await blob.arrayBuffer();
    postMessage({ bytes }, [bytes]);
  } catch (error) {
    postMessage({ error: error.message });
  }
};
