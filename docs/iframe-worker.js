// The search runs in a worker, which browsers refuse to pages that are read from a folder. There it runs in a frame.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = []; // until the script is there
      const frame = Object.assign(document.createElement("iframe"), { hidden: true });
      document.documentElement.append(frame);
      frame.contentDocument.open(); // so that no browser replaces the empty page later
      frame.contentDocument.close();
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = Object.assign(this.inside.document.createElement("script"), { src: url });
      script.onload = () => {
        const told = this.waiting;
        this.waiting = null;
        told.forEach((data) => this.postMessage(data));
      };
      this.inside.document.documentElement.append(script);
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {}
  };
}
