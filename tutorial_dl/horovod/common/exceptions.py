"""The interface of horovod.common.exceptions."""

from ...interop.horovod.elastic.errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]
