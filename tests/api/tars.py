"""Tar archives, good ones and others."""
import io
import tarfile


def make_tar(*entries, format=tarfile.PAX_FORMAT, mode="w", attributes={}):
    """entries: (name, content or None for a directory or {member attributes, and content as data}). attributes: of all members that have no others."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=format) as t:
        for name, what in entries:
            m = tarfile.TarInfo(name)
            m.mtime = 1234567890
            for k, v in attributes.items():
                setattr(m, k, v)
            data = b""
            if what is None:
                m.type, m.mode = tarfile.DIRTYPE, 0o755
            elif isinstance(what, dict):
                data = what.get("data", b"")
                m.size = len(data)
                for k, v in what.items():
                    if k != "data":
                        setattr(m, k, v)
            else:
                data, m.size = what, len(what)
            t.addfile(m, io.BytesIO(data))
    return out.getvalue()
