/* The search of pages that are opened as files. A browser refuses `new Worker("file:...")`, so the script of the worker
   runs in a hidden frame. Served pages use the browser's own workers. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const script = frame.contentDocument.createElement("script")
      this.inner = frame.contentWindow
      this.inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.ready = new Promise(resolve => script.addEventListener("load", resolve))
      script.src = new URL(url, location.href).href
      frame.contentDocument.body.append(script)
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
