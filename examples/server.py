"""Streams frames over HTTP as JPEG pictures that a browser shows as a video.

pip install fastapi uvicorn
BUNDLE=out/demo uvicorn --app-dir examples server:app
then open http://127.0.0.1:8000/video?prompt=a+red+square+moving+left+over+grass
"""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from io import BytesIO

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from PIL import Image

from vidc.runtime import UsageError, load


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with load(os.environ["BUNDLE"]) as app.state.bundle:
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/video")
def video(prompt: str, blocks: int = 8, seed: int = 0) -> StreamingResponse:
    try:
        session = app.state.bundle.session(seed=seed)
        session.prompt(prompt)
    except UsageError as error:  # Such as VIDC-SESSION-NUMBER.
        raise HTTPException(422, f"{error.code}: {error.message}") from error

    def pictures() -> Iterator[bytes]:
        with session:
            for frames in session.stream(blocks=blocks):
                video = frames.cpu().numpy()
                session.flush()  # Prepares the next block while these pictures are encoded.
                for frame in video:
                    Image.fromarray(frame).save(file := BytesIO(), "JPEG")
                    yield b"--frame\r\nContent-Type: image/jpeg\r\n\r\n" + file.getvalue() + b"\r\n"

    return StreamingResponse(pictures(), media_type="multipart/x-mixed-replace; boundary=frame")
