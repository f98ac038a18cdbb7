# A terminal for wrap.pl, which this stands before: the wrapper holds its master, types what comes on its own standard input, and shows what comes
# out of it on its standard output.
my ($master, $slave, $pts);

# Its number, or nothing.
sub terminal_open {
    my ($rows, $cols, $uid) = @_;
    my ($zero, $number, $modes) = (pack('i', 0), pack('i', 0), "\0" x 64);
    sysopen $master, '/dev/ptmx', 04402 or return; # O_RDWR | O_NOCTTY | O_NONBLOCK
    ioctl $master, 0x40045431, $zero or return;    # TIOCSPTLCK
    ioctl $master, 0x80045430, $number or return;  # TIOCGPTN
    $pts = unpack 'i', $number;
    sysopen $slave, "/dev/pts/$pts", 0402 or return;
    ioctl $slave, 0x5414, pack('S4', $rows, $cols, 0, 0) or return; # TIOCSWINSZ
    if (ioctl $slave, 0x5401, $modes) { # TCGETS
        substr($modes, 0, 4) = pack 'L', 040000 | unpack 'L', $modes; # IUTF8: an erase key that takes whole characters
        ioctl $slave, 0x5402, $modes; # TCSETS
    }
    chown $uid, -1, "/dev/pts/$pts" if $uid;
    return 1;
}

# In the child: it leads a session of its own, whose terminal it is.
sub terminal_enter {
    my $setsid = shift;
    syscall $setsid;
    ioctl $slave, 0x540e, 0; # TIOCSCTTY
    open STDIN, '<&', $slave;
    open STDOUT, '>&', $slave;
    open STDERR, '>&', $slave;
}

# The key that ends what is typed, twice: the first only sends off a line that was begun.
sub terminal_end {
    my $modes = "\0" x 64;
    ioctl $master, 0x5401, $modes or return '';
    my $key = substr $modes, 21, 1; # c_cc[VEOF]
    return $key eq "\0" ? '' : $key x 2;
}

# Until the child has ended and a while after that; $ended hears its status. The terminal is hung up then.
sub terminal_serve {
    my ($child, $reads, $ended) = @_;
    my ($typed, $shown, $over, $status, $tail, $grace) = ('', '', 0, undef, 0, undef);
    my $gone = syscall 434, $child, 0; # pidfd_open; a kernel without it has to be asked now and then
    my $wait = $gone < 0 ? 0.1 : undef;
    local $SIG{PIPE} = 'IGNORE';
    while (1) {
        while ((my $w = waitpid -1, 1) > 0) { $status = $? if $w == $child }
        if (defined $status && $slave) { close $slave; undef $slave }
        if (!$reads && !$over && $typed eq '') { $over = 1; $typed = terminal_end() }
        my ($r, $w) = ('', '');
        vec($r, 0, 1) = 1 if $reads && length $typed < 4096;
        vec($r, fileno $master, 1) = 1 if length $shown < 32768;
        vec($r, $gone, 1) = 1 if !defined $status && $gone >= 0;
        vec($w, fileno $master, 1) = 1 if $typed ne '' && !defined $status;
        vec($w, 1, 1) = 1 if $shown ne '';
        # What it wrote is there when nothing more comes, or so much that others must have written it.
        my ($n, $left) = select $r, $w, undef, !defined $status ? $wait : defined $grace ? $grace : $shown eq '' ? 0 : undef;
        if (defined $grace) { $grace = $left; last if !$n || $grace <= 0 }
        elsif (defined $status && (!$n || $tail > 131072)) { $ended->($status); $grace = 0.25; next }
        next if $n <= 0;
        if (vec($r, 0, 1)) { my $got = sysread STDIN, $typed, 4096, length $typed; $reads = 0 unless $got }
        if (vec($w, fileno $master, 1)) { my $took = syswrite $master, $typed; substr($typed, 0, $took) = '' if $took }
        if (vec($r, fileno $master, 1)) {
            my $got = sysread $master, $shown, 32768, length $shown;
            if ($got) { $tail += $got if defined $status }
            elsif ($! != 11) { # nobody has it open any more
                $ended->($status) if defined $status && !defined $grace;
                last if defined $status;
            }
        }
        if (vec($w, 1, 1)) { my $took = syswrite STDOUT, $shown, 4096; $shown = defined $took ? substr $shown, $took : '' }
    }
    close $master;
    while ($shown ne '') { my $took = syswrite STDOUT, $shown; last unless $took; $shown = substr $shown, $took }
}
